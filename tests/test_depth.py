"""Deep networks: the work of each transform grows in proportion to the depth, and its recursion does not grow at all.

Counted, not timed: the lines that each function of qfunc executes (each turn of a loop is one more), the inputs of nodes
that torch.fx copies, and the deepest stack of Python calls.  In dense networks, whose layers read all earlier outputs, the
work may grow as the edges do.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from tests.onnxruntime_target import on_vnni

PACKAGE = str(Path(qfunc.__file__).parent)
DEPTHS = 2, 4, 8
COPIED = "inputs of nodes that torch.fx copies"


class Count:
    """The lines by function of qfunc, and the deepest stack."""

    def __init__(self, counting: bool = True) -> None:
        self.counting = counting
        self._lines: dict[CodeType | str, list[int]] = defaultdict(lambda: [0])
        self.depth = self.deepest = 0

    @property
    def lines(self) -> Counter[CodeType | str]:
        return Counter({code: count for code, (count,) in self._lines.items()})

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count what runs inside."""
        if not self.counting:
            yield
            return
        trace, profile = sys.gettrace(), sys.getprofile()
        sys.setprofile(self._profile)
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(trace)
            sys.setprofile(profile)

    def _profile(self, frame: Any, event: str, called: Any) -> None:
        if event == "call":
            self.depth += 1
            if self.depth > self.deepest:
                self.deepest = self.depth
        elif event == "return":
            self.depth -= 1
        elif event == "c_call" and called.__name__ in ("_replace_input_with", "_update_args_kwargs"):
            self._lines[COPIED][0] += 3 * len(called.__self__.all_input_nodes)  # in lines that cost as much

    def _call(self, frame: Any, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        count = self._lines[frame.f_code]

        def line(_: Any, event: str, __: Any) -> Any:
            if event == "line":
                count[0] += 1
            return line

        return line


class Chain(nn.Module):
    """Convolutions, with shortcuts around them if `residual`, whose sizes are read and used."""

    def __init__(self, depth: int, residual: bool) -> None:
        super().__init__()
        self.residual = residual
        blocks = (nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.ReLU()) for _ in range(depth))
        self.layers = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).reshape(x.shape) if self.residual else layer(x)
        return x


class Dense(nn.Module):
    """Convolutions that read all earlier outputs."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(2 + i, 1, 1) for i in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


X = torch.linspace(-1, 1, 16).reshape(2, 2, 2, 2)


def steps(
    model: nn.Module, target: Any, *, norms: bool = False, equalized: bool = False, counting: bool = True
) -> dict[str, Count]:
    """Return the counts of each transform on a network, also of the transforms for BatchNorms and for chains."""
    counts = dict[str, Count]()

    def step(name: str, work: Callable[[], Any]) -> Any:
        counts[name] = Count(counting)
        with counts[name].running():
            return work()

    captured = step("capture", lambda: qfunc.capture()(model))
    quantized = step("quantize", lambda: qfunc.quantize(target)(captured))
    if norms:
        trained = step("train", lambda: qfunc.quantize(target, batch_norm=qfunc.TrainBatchNorm())(captured))
        step("fold", lambda: qfunc.fold_batch_norm()(trained))
    calibrated = step("calibrate", lambda: qfunc.calibrate([X], progress=False)(quantized))
    step("emulate", lambda: qfunc.emulate(target)(calibrated))
    step("deploy", lambda: qfunc.deploy(target)(calibrated))
    step("explain", lambda: str(qfunc.explain(calibrated)))
    step("verify", lambda: qfunc.verify(target)(calibrated, [X]))
    step("compare", lambda: qfunc.compare([X], progress=False)(calibrated))
    step("correct_bias", lambda: qfunc.correct_bias([X], progress=False)(calibrated))
    if equalized:  # a sum does not commute with factors per channel
        step("equalize", lambda: qfunc.equalize()(captured))
        step("absorb", lambda: qfunc.corrections.absorb_high_bias()(captured))
        step("correct", lambda: qfunc.correct_bias_analytic(captured)(quantized))
    with tempfile.TemporaryDirectory() as folder:
        step("save", lambda: qfunc.save(folder)(calibrated))
        step("load", lambda: qfunc.load(folder)(captured))
    return counts


def growth(counts: list[Count], sizes: tuple[int, int, int] = DEPTHS) -> dict[str, float]:
    """Return the functions that do more for each layer in a deeper network, with the ratio: 1 if the work is proportional."""
    small, middle, large = (count.lines for count in counts)
    share, found = (sizes[2] - sizes[1]) / (sizes[1] - sizes[0]), {}
    for code, most in large.items():
        first, second = middle[code] - small[code], (most - middle[code]) / share
        if second > 60 and second > 1.15 * first:
            found[_name(code)] = second / max(first, 1)
    return found


def _name(code: CodeType | str) -> str:
    if isinstance(code, str):
        return code
    return f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_name}:{code.co_firstlineno}"


def chain(depth: int, residual: bool) -> nn.Module:
    torch.manual_seed(0)
    model = Chain(depth, residual).eval()
    for block in model.layers:
        nn.init.dirac_(block[0].weight)  # type: ignore[index]
    return model


def dense(depth: int) -> nn.Module:
    torch.manual_seed(0)
    return Dense(depth).eval()


@pytest.mark.thorough
@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
def test_the_work_for_a_layer_does_not_depend_on_the_depth(residual: bool) -> None:
    target, also = targets.onnxruntime, {"norms": True, "equalized": not residual}
    steps(chain(2, residual), target, **also, counting=False)  # imports
    by_depth = [steps(chain(depth, residual), target, **also) for depth in DEPTHS]
    names = by_depth[0]
    assert {name: found for name in names if (found := growth([counts[name] for counts in by_depth]))} == {}
    assert {name: depths for name in names if len(set(depths := [c[name].deepest for c in by_depth[1:]])) > 1} == {}


@pytest.mark.thorough
@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
def test_the_work_for_a_unit_of_reconstruction_does_not_depend_on_the_depth(residual: bool) -> None:
    counts, images = [], [X.repeat(2, 1, 1, 1)]
    for depth in (2, *DEPTHS):  # the first time for imports
        model = qfunc.calibrate(images, progress=False)(qfunc.quantize(targets.onnxruntime)(chain(depth, residual)))
        counts.append(Count(counting=bool(counts)))
        with counts[-1].running():
            qfunc.reconstruct(qfunc.qdrop(iterations=1, batch=2), images, progress=False)(model)
    assert growth(counts[1:]) == {}


def searches(model: nn.Module, batches: list[Tensor], counting: bool = True) -> dict[str, Count]:
    """Return the counts of the steps that run a network some times for each batch, with any depth."""
    target, counts = targets.onnxruntime, dict[str, Count]()
    calibrated = qfunc.calibrate(batches[:1], progress=False)(qfunc.quantize(target)(model))
    layers = nn.Sequential(*(nn.Linear(2, 2) for m in model.modules() if isinstance(m, nn.Conv2d)))
    linear = qfunc.calibrate(batches[:1], progress=False)(qfunc.quantize(target)(layers))
    budget, loss = qfunc.SizeBudget(mean_bits=6), qfunc.HessianTrace(draws=1)
    works: dict[str, Callable[[], Any]] = {
        "gptq": lambda: qfunc.gptq(batches, progress=False)(linear),
        "mixed_precision": lambda: qfunc.mixed_precision(batches, (4,), budget, loss=loss, progress=False)(calibrated),
        "sweep": lambda: qfunc.sweep([target], batches, progress=False)(model),
        "compare": lambda: qfunc.compare(batches, progress=False)(calibrated),
        "verify": lambda: qfunc.verify(target)(calibrated, batches),
    }
    for name, work in works.items():
        counts[name] = Count(counting)
        with counts[name].running():
            work()
    return counts


@on_vnni  # weights of 7 bits have other losses, for which the exact search of mixed precision branches more
@pytest.mark.thorough
@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
def test_the_work_of_searches_for_a_layer_does_not_depend_on_the_depth(residual: bool) -> None:
    searches(chain(2, residual), [X], counting=False)  # imports
    by_depth = [searches(chain(depth, residual), [X]) for depth in DEPTHS]
    assert {name: found for name in by_depth[0] if (found := growth([counts[name] for counts in by_depth]))} == {}


@pytest.mark.thorough
def test_the_work_for_a_batch_does_not_depend_on_the_number_of_batches() -> None:
    searches(chain(2, True), [X], counting=False)  # imports
    by_count = [searches(chain(2, True), [X] * count) for count in DEPTHS]
    assert {name: found for name in by_count[0] if (found := growth([counts[name] for counts in by_count]))} == {}


DENSE = 2, 4, 8
EDGES = 2**2, 4**2, 8**2  # but for a factor, and terms that grow more slowly


@pytest.mark.thorough
def test_the_work_for_an_edge_does_not_depend_on_the_depth() -> None:
    steps(dense(1), targets.onnxruntime, counting=False)  # imports
    by_depth = [steps(dense(depth), targets.onnxruntime) for depth in DENSE]
    found = {name: growth([counts[name] for counts in by_depth], EDGES) for name in by_depth[0]}
    assert {name: functions for name, functions in found.items() if functions} == {}


def test_the_work_for_a_reader_does_not_depend_on_the_number_of_readers() -> None:
    """TensorRT quantizes what an op reads, so that all readers of a tensor must agree."""
    counts = [Count() for _ in DENSE]
    for depth, count in zip(DENSE, counts, strict=True):
        captured = qfunc.capture()(dense(depth))
        with count.running():
            qfunc.quantize(targets.tensorrt)(captured)
    assert growth(counts, EDGES) == {}


def test_the_garbage_collector_is_paused_by_transforms_and_runs_after_them() -> None:
    """Full collections walk over all objects of a graph that grows, so that their time is not proportional to the depth."""
    captured, x = qfunc.capture()(chain(20, False)), torch.randn(1, 2, 4, 4)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(captured))
    transforms = [qfunc.quantize(targets.onnxruntime), qfunc.emulate(targets.onnxruntime), qfunc.deploy(targets.onnxruntime)]
    for transform, given in zip([*transforms, qfunc.explain], [captured, model, model, model], strict=True):
        before = sum(generation["collections"] for generation in gc.get_stats())
        transform(given)
        assert sum(generation["collections"] for generation in gc.get_stats()) - before <= 2, transform
    for step in (qfunc.calibrate, qfunc.compare, qfunc.correct_bias):  # paused while a graph is copied, not between batches
        before = sum(generation["collections"] for generation in gc.get_stats())
        step([x], progress=False)(model)
        assert sum(generation["collections"] for generation in gc.get_stats()) - before <= 8, step
    with pytest.raises(qfunc.errors.CalibrationError):
        qfunc.quantize(targets.onnxruntime)(model)
    assert gc.isenabled()
    gc.disable()
    try:
        qfunc.quantize(targets.onnxruntime)(captured)
        assert not gc.isenabled()
    finally:
        gc.enable()
