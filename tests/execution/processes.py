"""Two processes of one group that calibrate side by side; a second process reports what became of each case."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from attrs import frozen
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import estimators, targets
from qfunc.errors import QfuncError
from qfunc.estimators import Ema, MinMax, PowerOfTwo
from qfunc.execution import observers
from qfunc.graph.record import record_of
from qfunc.reconstruction.hessian import compensate
from qfunc.specs import PerChannel, edit
from qfunc.targets.runtimes import OnnxRuntimeRunner
from qfunc.testing import check_target
from tests.onnxruntime_target import ONNXRUNTIME
from tests.transforms.checks import same_state, state

TARGET = edit.weights(bits=8)(ONNXRUNTIME)  # as it is where no conftest.py changes it

ESTIMATORS: dict[str, Any] = {
    **{n: getattr(estimators, n)() for n in estimators.__all__},
    "PowerOfTwo of Mse": PowerOfTwo(estimators.Mse()),
    "Ema of Quantile": Ema(estimators.Quantile(0.97)),
}


@frozen
class Last:
    """The range of the last batch alone: nothing that could be merged."""

    def init(self, scheme: Any, like: Tensor) -> Any:
        return MinMax().init(scheme, like)

    def update(self, old: Any, x: Tensor, scheme: Any) -> Any:
        return MinMax().update(self.init(scheme, x), x, scheme)

    def finalize(self, last: Any, scheme: Any) -> Any:
        return MinMax().finalize(last, scheme)


def batches(rank: int) -> list[Tensor]:
    """Of another number and other sizes on each rank: counted where there are more than 4096 values, else kept."""
    generator = torch.Generator().manual_seed(rank)
    drawn = [(1 + rank) * torch.randn(n, 5, generator=generator) for n in ((1500, 7), (2, 9, 4))[rank]]
    return [(32 * x).round() / 32 for x in drawn]


def tokens(rank: int, length: int) -> Tensor:
    """A batch of 3 or 2 rows for `by_channel`."""
    return torch.randn(3 - rank, length, 5, generator=torch.Generator().manual_seed(rank))


def made(estimator: Any = None, layers: int = 3) -> Any:
    """A quantized model whose activations have the estimator; sums of a few of its products are exact in float32."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_((8 * p).round() / 8)
    target = TARGET if estimator is None else edit.activations(estimator=estimator)(TARGET)
    return qfunc.quantize(target)(net[:layers])


def by_channel() -> Any:
    """A quantized linear layer whose activations have a scale for each position of axis 1."""
    torch.manual_seed(0)
    return qfunc.quantize(edit.activations(granularity=PerChannel(1))(TARGET))(nn.Linear(5, 2))


def outcome(action: Callable[[], Any]) -> Any:
    """(state_dict, the shapes of the inputs) of what an action calibrates, or the kind and text of its error."""
    try:
        done = action()
    except QfuncError as error:
        return type(error).__name__, str(error)
    return state(done), record_of(done).inputs


def figures(parts: Any, model: Any) -> Any:
    """What `compare` and `sensitivity` count, and the biases that `correct_bias` finds, or the error of each."""
    steps = (
        lambda: [(r.tensor, r.agreement, r.alone, r.histogram) for r in qfunc.compare(parts)(model).rows],
        lambda: [(r.site, r.agreement) for r in qfunc.sensitivity(parts)(model).rows],
        lambda: [p.detach() for n, p in qfunc.correct_bias(parts)(model).named_parameters() if n.endswith("bias")],
    )
    found = []
    for step in steps:
        try:
            found.append(step())
        except QfuncError as error:
            found.append((type(error).__name__, str(error)))
    return found


class Unlike(nn.Module):
    """A concat whose inputs have unlike ranges, if the values are large."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([10 * x, torch.sigmoid(x)], 1)


def unlike_ranges(rank: int) -> list[str]:
    """The warnings about values that are large on rank 1 only."""
    quantized = qfunc.quantize(targets.litert)(Unlike())
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        qfunc.calibrate([torch.full((2, 3), 1.0 if rank else 0.01)])(quantized)
    return [str(w.message) for w in found]


def reports(rank: int, own: list[Tensor]) -> dict[str, Any]:
    """What became of the reports of one calibrated model on batches of both ranks, of rank 0 alone, and of none."""
    model = qfunc.calibrate([*batches(0), *batches(1)], group=dist.new_subgroups(1)[0])(made())
    return {
        "figures": figures(own, model),
        "figures of rank 0": figures([] if rank else own, model),
        "figures of none": figures([], model),
        "figures after a failure": figures([own[0][:, :3]] if rank else own, model),
        "figures of two models": qfunc_error(lambda: qfunc.compare(own)(qfunc.bypass(edit.name(f"{2 * rank}"))(model))),
    }


MIXED_LOSSES = {"mse": qfunc.OutputMse(), "trace": qfunc.HessianTrace(draws=3, seed=5)}


def mixed(parts: Any, model: Any, **how: Any) -> dict[str, Any]:
    """What `mixed_precision` finds by each loss, at a budget in multiply-accumulates."""
    budget = qfunc.BitOpsBudget(share=0.6)
    run = {
        n: qfunc.mixed_precision(parts, (2, 4), budget, loss=loss, progress=False, **how) for n, loss in MIXED_LOSSES.items()
    }
    return {n: (found.losses, found.bits, found.cost) for n, each in run.items() for found in (each(model),)}


@frozen
class Unmergeable:
    """A loss that counts batches."""

    def watch(self, ops: Any, weights: Any) -> Any:
        return _Counter()


class _Counter:
    def add(self, arguments: tuple[Any, ...], number: int) -> Any:
        return None

    def losses(self) -> dict[Any, float]:
        return {}


def broken_chip(artifact: Any, inputs: Any) -> Any:
    """Run nothing."""
    raise NotImplementedError("broken")


def conformance(rank: int) -> dict[str, Any]:
    """What became of checks that both ranks share."""

    def chains(n: int) -> Any:
        for i in range(n):
            torch.manual_seed(i)
            yield nn.Sequential(nn.Linear(3, 2)).eval(), torch.randn(2, 3)

    def failing(broken: int) -> str:
        runner: Any = None if rank != broken else broken_chip
        try:
            check_target(ONNXRUNTIME, run=runner, models=list(chains(2)))
        except AssertionError as error:
            return str(error)
        return ""

    drawn = list[str]()

    def note(model: Any) -> Any:
        drawn.append(repr(model[0]))
        return model

    runs = _Counted()
    models = st.sampled_from([4, 5, 6, 7]).map(lambda n: note((nn.Sequential(nn.Linear(3, n)).eval(), torch.ones(2, 3))))
    check_target(ONNXRUNTIME, run=runs, models=models, examples=8)
    return {"drawn": drawn, "checked": runs.widths, "failing": failing(1), "passing": failing(-1)}


class _Counted:
    def __init__(self) -> None:
        self.widths: list[int] = []

    def __call__(self, artifact: Any, inputs: Any) -> Any:
        found: Any = OnnxRuntimeRunner().run(artifact, inputs)
        self.widths.append(found[0].shape[-1])
        return found


def rounded(parts: Any) -> list[Tensor]:
    """What `gptq` adds to the weights of 3 bits, of a model that this process calibrates alone."""
    torch.manual_seed(0)
    target = edit.weights(bits=3)(TARGET)
    net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    both, alone = [batches(0)[1], batches(1)[1]], dist.new_subgroups(1)[0] if dist.is_initialized() else None
    model = qfunc.calibrate(both, group=alone)(qfunc.quantize(target)(net))
    made = qfunc.gptq(parts, progress=False)(model)
    return [v for name, v in sorted(made.state_dict().items()) if name.endswith("shift")]


def without_memory(owner: Any, name: str, call: int, action: Callable[[], Any]) -> Any:
    """What an action gives in a process that has too little memory for the call of a number of a function."""
    calls, function = count(1), getattr(owner, name)

    def failing(*given: Any) -> Any:
        if next(calls) == call:
            raise MemoryError("no memory left")
        return function(*given)

    with patch.object(owner, name, failing):
        return action()


def qfunc_error(action: Callable[[], Any]) -> str:
    """The text of an action's error."""
    try:
        action()
    except (QfuncError, MemoryError) as error:
        return str(error)
    return ""


def cases(rank: int) -> dict[str, Any]:
    """What became of every case on this rank."""
    own, none = batches(rank), []
    results = {n: outcome(lambda e=e: qfunc.calibrate(own)(made(e))) for n, e in ESTIMATORS.items()}
    for idle in (0, 1):
        mine = none if rank == idle else own
        results[f"rank {idle} has none"] = outcome(lambda mine=mine: qfunc.calibrate(iter(mine))(made()))
    results["empty first"] = outcome(lambda: qfunc.calibrate([own[0][:0]] if rank == 0 else own)(made()))
    results["no batches"] = outcome(lambda: qfunc.calibrate([])(made()))
    results["only empty"] = outcome(lambda: qfunc.calibrate([own[0][:0]])(made()))
    results["by channel"] = outcome(lambda: qfunc.calibrate([tokens(rank, 4)])(by_channel()))
    results["other channels"] = outcome(lambda: qfunc.calibrate([tokens(rank, 4 - rank)])(by_channel()))
    results["quantized"] = outcome(lambda: qfunc.calibrate(own, through=qfunc.QuantizedPass())(made()))
    given = (made(), made(estimators.Mse()))
    before = [state(m) for m in given]
    several = qfunc.calibrate(own)(given)
    results["several"] = [(state(m), record_of(m).inputs) for m in several]
    results["unchanged"] = all(same_state(state(m), b) for m, b in zip(given, before, strict=True))
    results["no merge"] = outcome(lambda: qfunc.calibrate(own)(made(Last())))
    results["no merge inside"] = outcome(lambda: qfunc.calibrate(own)(made(PowerOfTwo(Last()))))
    bad = own if rank == 0 else [own[0], own[1] / 0]
    results["infinite on rank 1"] = outcome(lambda: qfunc.calibrate(bad)(made()))
    results["wrong on rank 0"] = outcome(lambda: qfunc.calibrate(own if rank else [{"rows": own[0]}])(made()))
    results["other estimators"] = outcome(lambda: qfunc.calibrate(own)(made(Ema(decay=0.5 + rank / 4))))
    results["other sites"] = outcome(lambda: qfunc.calibrate(own)(made(layers=3 - rank)))
    results["after failures"] = outcome(lambda: qfunc.calibrate(own)(made()))
    results |= reports(rank, own)
    results["unlike ranges"] = unlike_ranges(rank)
    model = qfunc.calibrate([*batches(0), *batches(1)], group=dist.new_subgroups(1)[0])(made())
    results["mixed"] = mixed(own, model)
    budget = qfunc.SizeBudget(4)
    results["mixed, no batches on rank 0"] = qfunc_error(
        lambda: qfunc.mixed_precision(own if rank else [], (4,), budget)(model)
    )
    results["mixed, no merge"] = qfunc_error(lambda: qfunc.mixed_precision(own, (4,), budget, loss=Unmergeable())(model))
    results["rounded"] = rounded(own)
    results["rounded, NaN on rank 1"] = qfunc_error(lambda: rounded([own[0], own[1] * (torch.nan if rank else 1)]))
    results["rounded, no batches on rank 0"] = qfunc_error(lambda: rounded(own if rank else []))
    results["rounded, no memory on rank 1"] = qfunc_error(
        lambda: without_memory(compensate, "_rounded", 3 if rank else 0, lambda: rounded(own))
    )
    results["qparams, no memory on rank 1"] = qfunc_error(
        lambda: without_memory(observers.Observer, "qparams", rank, lambda: qfunc.calibrate(own)(made()))
    )
    results["conformance"] = conformance(rank)
    alone, first = dist.new_subgroups(1)[0], dist.new_group([0])
    results["alone"] = outcome(lambda: qfunc.calibrate(own, group=alone)(made(Last())))
    results["named"] = outcome(lambda: qfunc.calibrate(own, group=dist.new_group([0, 1]))(made()))
    results["not a member"] = outcome(lambda: qfunc.calibrate(own, group=first)(made()))
    return results


def work(rank: int, folder: str) -> None:
    """One of the processes."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=Path(folder, "meet").as_uri(), rank=rank, world_size=2, timeout=limit)
    torch.save(cases(rank), Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()
