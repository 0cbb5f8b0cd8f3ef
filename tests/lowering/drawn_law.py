"""One law for every runtime: ops as Hypothesis draws them are emulated as the runtime computes them, code by code."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, reject, settings
from torch import Tensor, nn

import qfunc
from qfunc.errors import DeployError, EmulationError
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from qfunc.specs import FLOAT32
from tests.lowering import tie_ops
from tests.lowering.drawn_ops import KINDS, Shape, Side, Trial, image, move, trials

EXAMPLES = int(os.environ.get("QFUNC_EXAMPLES", "0"))
Run = Callable[[Any, list[Tensor]], list[Any]]


def held_against(run: Run, target: Any, refusals: set[str], kinds: Any = KINDS) -> str:
    """What was compared; fails where an output differs, or a trial is refused for another reason than these.

    Args:
        run: (artifact, inputs) -> outputs, by the runtime.
        refusals: What the refusals want, as they begin.
    """
    ops, elements, refused = Counter[str](), 0, Counter[str]()

    @settings(max_examples=EXAMPLES or 4, derandomize=not EXAMPLES, deadline=None, database=None,
              phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(trials(kinds))
    def law(trial: Trial) -> None:
        nonlocal elements
        try:
            each = list(compared(trial, target, run))
        except (DeployError, EmulationError) as e:
            refused[str(e).split(", wanted ")[1].split(". ")[0]] += 1
            reject()
        for name, op, different, count in each:
            assert not different, f"{name}, {op} of {trial.shape}: {different} of {count} differ"
            ops[name] += 1
            elements += count

    law()
    told = f"{ops.total():,} ops, {elements:,} elements, 0 differ: {dict(sorted(ops.items()))}, refused: {dict(refused)}"
    assert set(refused) <= refusals, told
    return told


def compared(trial: Trial, target: Any, run: Run) -> Iterator[tuple[str, nn.Module, int, int]]:
    """(name, op, outputs that differ, outputs) of each op."""
    model = _calibrated(Side(trial.ops).eval(), target, trial.shape)
    move(model, trial.seed, trial.spread)
    x = image(model, trial.shape, trial.seed)
    assert not [u.path for u in Partition(QuantizedModel(model), target).units if not u.integer]
    emulated = qfunc.emulate(target)(model)(x)
    found = run(qfunc.deploy(target)(model), [x])
    for name, op, want, got in zip(trial.names, trial.ops, emulated, found, strict=True):
        yield name, op, int((want != torch.from_numpy(got)).sum()), want.numel()


def held_at_ties(run: Run, target: Any, ops: Sequence[tuple[str, nn.Module]], seed: int = 1) -> str:
    """What was compared, of many ops in one graph whose sums are often halves; fails at the first op that differs.

    Args:
        run: (artifact, inputs) -> outputs, by the runtime.
        ops: As `tie_ops` names them.
    """
    model, x = at_ties(target, ops, seed)
    assert not [u.path for u in Partition(QuantizedModel(model), target).units if not u.integer]
    emulated = qfunc.emulate(target)(model)(x)
    found, elements = run(qfunc.deploy(target)(model), [x]), 0
    for (name, op), want, got in zip(ops, emulated, found, strict=True):
        different = int((want != torch.as_tensor(got)).sum())
        assert not different, f"{name}, {op}: {different} of {want.numel()} differ"
        elements += want.numel()
    return f"{len(ops)} ops, {elements:,} elements, 0 differ"


def at_ties(
    target: Any, ops: Sequence[tuple[str, nn.Module]], seed: int, halves: bool = True, ties: bool = True
) -> tuple[Any, Tensor]:
    """A calibrated model of many ops with scales for ties, and its input."""
    fmt = next(f for k in target.kernels for slot, formats in k.formats if slot == "input" for f in formats if f != FLOAT32)
    x = tie_ops.image(seed, fmt.qmin, fmt.qmax, halves)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Side([op for _, op in ops]).eval()))
    tie_ops.set_scales(model, seed, ties)
    return model, x


def _calibrated(model: nn.Module, target: Any, shape: Shape) -> nn.Module:
    batch = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return qfunc.calibrate([batch], progress=False)(qfunc.quantize(target)(model))


__all__ = ["at_ties", "compared", "held_against", "held_at_ties"]
