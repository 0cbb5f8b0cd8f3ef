"""measure_placement: the placement of least time, by a chip whose times are drawn, and by brute force."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.diagnosis.cheapest_placement import TensorTraffic, cheapest
from qfunc.diagnosis.measured_placement import MeasuredPlacement, PlacementTime
from qfunc.diagnosis.plan import Plan
from qfunc.diagnosis.unit_networks import unit_network
from qfunc.errors import SpecError
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.graph.view import QuantizedModel
from qfunc.lowering.machines.processors import Browser
from qfunc.placement.partition import Partition
from qfunc.specs import Op, Slower, edit
from qfunc.targets.runtimes import OnnxRuntimeRunner

TARGET = targets.onnxruntime


# The cut, by all placements.


@st.composite
def problems(draw: st.DrawFn) -> tuple[dict[int, float | None], list[TensorTraffic]]:
    """Ops with gains of both signs, and tensors that earlier ops or inputs write and later ones or outputs read."""
    count = draw(st.integers(1, 7))
    gains = {i: draw(st.none() | st.integers(-9, 9).map(float)) for i in range(count)}
    tensors = []
    for writer in (None, *range(count)):
        later = [i for i in range(count) if writer is None or i > writer]
        readers = draw(st.lists(st.sampled_from([None, *later]), min_size=1, max_size=3, unique=True))
        tensors.append(TensorTraffic(writer, tuple(readers), float(draw(st.integers(0, 6)))))
    return gains, tensors


def seconds(integers: frozenset[int], gains: Mapping[int, float | None], tensors: Sequence[TensorTraffic]) -> float:
    """The time of a placement, by its definition."""
    total = 0.0
    for i in integers:
        gain = gains[i]
        total += math.inf if gain is None else gain
    for tensor in tensors:
        readers = [reader in integers for reader in tensor.readers]
        total += tensor.seconds * (not all(readers) if tensor.writer in integers else any(readers))
    return total


@given(problems())
@settings(max_examples=100)
def test_no_placement_is_cheaper(problem: Any) -> None:
    gains, tensors = problem
    subsets = (frozenset(c) for k in range(len(gains) + 1) for c in itertools.combinations(gains, k))
    best = {s: seconds(s, gains, tensors) for s in subsets}
    found = cheapest(gains, tensors)
    assert best[found] == min(best.values())
    assert len(found) == max(len(s) for s, cost in best.items() if cost == best[found])


# A chip whose times are a table: the file decides what it computes on integers, and what it converts.


class Clock:
    """Seconds of a Q/DQ file on a chip with a table of (on integers, in float) for each op.

    A convolution is known by its filters, a leaky relu by its slope.  A tensor is converted where its writer and a reader are
    not placed alike; its time is `conversion` for each element.
    """

    def __init__(self, table: Mapping[Any, tuple[float, float]], conversion: float) -> None:
        self.table, self.conversion = table, conversion

    def __call__(self, artifacts: Sequence[Any], inputs: Sequence[Tensor]) -> list[float]:
        return [self.seconds(a, inputs) for a in artifacts]

    def seconds(self, artifact: Any, inputs: Sequence[Tensor]) -> float:
        model = onnx.load_from_string(artifact.files["model.onnx"])
        for argument, tensor in zip(model.graph.input, inputs, strict=True):
            for dim, size in zip(argument.type.tensor_type.shape.dim, tensor.shape, strict=True):
                dim.dim_value = size
        graph = onnx.shape_inference.infer_shapes(model).graph
        values = (*graph.value_info, *graph.output, *graph.input)
        sizes = {v.name: math.prod(d.dim_value for d in v.type.tensor_type.shape.dim) for v in values}
        writer: dict[str, Any] = {name: node for node in graph.node for name in node.output}
        writer["quantized"] = {n.input[0] for n in graph.node if n.op_type == "QuantizeLinear"}
        total = 0.0
        converted: dict[str, list[bool]] = {}  # for each tensor, whether its readers are on integers
        for node in graph.node:
            if node.op_type in ("Conv", "LeakyRelu"):
                total += self.table[key(node)][0 if on_integers(node, writer) else 1]
                converted.setdefault(source(node.input[0], writer), []).append(on_integers(node, writer))
        for output in graph.output:
            converted.setdefault(source(output.name, writer), []).append(False)
        for name, readers in converted.items():
            written = name in writer and on_integers(writer[name], writer)
            total += self.conversion * sizes[name] * any(reader is not written for reader in readers)
        return total


def on_integers(node: Any, writer: Mapping[str, Any]) -> bool:
    """True for an op that reads codes: a convolution between codes and codes, a leaky relu that also writes them."""
    coded = [name in writer and writer[name].op_type == "DequantizeLinear" for name in node.input[:2]]
    return all(coded) and (node.op_type == "Conv" or node.output[0] in writer["quantized"])


def source(name: str, writer: Mapping[str, Any]) -> str:
    """The tensor before its quantizer."""
    while name in writer and writer[name].op_type in ("QuantizeLinear", "DequantizeLinear", "Max"):
        name = writer[name].input[0]
    return name


def key(node: Any) -> Any:
    """What a chip knows an op by."""
    if node.op_type == "LeakyRelu":
        return round(node.attribute[0].f, 3)
    return tuple(next(a.ints for a in node.attribute if a.name == "kernel_shape"))


KEYS: tuple[Any, ...] = ((1, 1), (1, 3), (3, 1), 0.1, 0.2)


class Drawn(nn.Module):
    """A chain of convolutions of different filters and leaky relus of different slopes."""

    def __init__(self, kinds: Sequence[Any]) -> None:
        super().__init__()
        ops = [nn.LeakyReLU(k) if isinstance(k, float) else nn.Conv2d(4, 4, k, padding=(k[0] // 2, k[1] // 2)) for k in kinds]
        self.ops = nn.ModuleList(ops)

    def forward(self, x: Tensor) -> Any:
        for op in self.ops:
            x = op(x)
        return x


@pytest.mark.thorough
@given(st.permutations(KEYS), st.lists(st.tuples(*2 * [st.integers(1, 90)]), min_size=5, max_size=5), st.integers(0, 60))
@settings(max_examples=3, deadline=None)
def test_no_choice_of_ops_in_float_is_faster(kinds: list[Any], times: list[tuple[int, int]], conversion: int) -> None:
    """By a file of each choice."""
    torch.manual_seed(0)
    x = torch.randn(1, 4, 4, 4)
    model, clock = Drawn(kinds).eval(), Clock(dict(zip(KEYS, times, strict=True)), conversion / 64)
    found = qfunc.measure_placement(TARGET, (x,), progress=False, latency=clock)(model)

    def time_of(plan: Plan) -> float:
        target = plan.target(TARGET)
        artifact = qfunc.deploy(target)(qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model)))
        return clock.seconds(artifact, [x])

    paths = [f"ops.{i}" for i in range(len(kinds))]
    subsets = (frozenset(c) for k in range(len(paths)) for c in itertools.combinations(paths, k))
    filters = {path for path, kind in zip(paths, kinds, strict=True) if not isinstance(kind, float)}
    choices = [Plan(floats=floats) for floats in subsets if not floats >= filters]  # some product is on integers
    assert time_of(found.plan) <= 1.05 * min(map(time_of, choices))  # what gains less is left as given


def test_the_network_of_a_unit_computes_it() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.AvgPool2d(2)).eval()
    x, values = torch.randn(2, 3, 8, 8), dict[str, Any]()
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(TARGET)(model))
    partition = Partition(QuantizedModel(calibrated), TARGET)
    with torch.no_grad():
        ObservingInterpreter(partition.network, values.__setitem__).run_batch((x,), "test")
        for unit in partition.units:
            alone = unit_network(partition.network, unit.group.nodes, values)
            assert alone is not None
            np.testing.assert_array_equal(alone.module(*alone.inputs), values[unit.group.output.name])
            assert alone.elements == values[unit.group.output.name].numel()


# The report.


def costly(costs: Mapping[str, float]) -> Any:
    """A clock by which an op on integers costs what its kind does, and any other a millisecond."""

    def clock(artifacts: Sequence[Any], inputs: Sequence[Tensor]) -> list[float]:
        return [sum(costs.get(u["kind"], 1e-4) if u["integer"] else 1e-3 for u in a.report["units"]) for a in artifacts]

    return clock


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.LeakyReLU(0.1), nn.Conv2d(4, 4, 3)).eval()


X = (torch.randn(1, 3, 8, 8),)


def test_what_costs_more_on_integers_is_in_float() -> None:
    found = qfunc.measure_placement(TARGET, X, progress=False, latency=costly({"leaky_relu": 1.0}))(small())
    assert repr(found.plan) == "edit.skip(edit.name('1'))"
    assert found.edit(TARGET) == edit.skip(edit.name("1"))(TARGET)
    assert [t.name for t in found.times] == ["measured", "in float", "as given"]
    assert found.ratio == pytest.approx((2e-4 + 1e-3) / 3e-3)
    assert found.remark == ""
    assert "edit.skip(edit.name('1'))" in str(found)
    assert "edit.skip(edit.name(&#x27;1&#x27;))" in found.html()


def test_what_a_processor_is_said_to_do_slower_may_be_faster_here() -> None:
    chip = edit.slower(Slower(Op("leaky_relu"), 3.0, "a drawn network"))(TARGET)
    found = qfunc.measure_placement(chip, X, progress=False, latency=costly({}))(small())
    assert repr(found.plan) == "edit.slower()"
    kept = qfunc.measure_placement(chip, X, progress=False, latency=costly({"leaky_relu": 1.0}))(small())
    assert kept.plan == Plan()


def test_a_target_that_is_as_fast_as_any_is_left_as_given() -> None:
    found = qfunc.measure_placement(TARGET, X, progress=False, latency=costly({}))(small())
    assert found.plan == Plan()
    assert found.edit(TARGET) == TARGET


def test_the_report_says_that_float_is_faster() -> None:
    found = qfunc.measure_placement(TARGET, X, progress=False, latency=costly({"conv": 1.0, "leaky_relu": 1.0}))(small())
    assert repr(found.plan) in ("edit.skip(edit.name('0', '1'))", "edit.skip(edit.name('1', '2'))")
    assert found.remark == (
        "in float this network takes 0.003 of the time: on this machine nothing is faster on integers than the whole network "
        "in float"
    )
    assert found.remark in str(found)


def test_the_runtime_of_this_machine_is_measured() -> None:
    found = qfunc.measure_placement(TARGET, X, progress=False)(small())
    assert {row.kind for row in found.rows} == {"conv", "leaky_relu"}
    assert all(t.seconds > 0 for t in found.times)


def test_the_row_of_equal_units_has_all_their_paths() -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)), nn.Linear(8, 2)).eval()
    found = qfunc.measure_placement(TARGET, (torch.randn(1, 8),), progress=False, latency=costly({}))(model)
    assert [row.paths for row in found.rows] == [("0", "1", "2"), ("3",)]


def test_wrong_arguments() -> None:
    with pytest.raises(
        SpecError, match=r"measure_placement: found .*Tensor.*, wanted a tuple of example inputs\. Write \(x,\)"
    ):
        qfunc.measure_placement(TARGET, X[0])  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"measure_placement, latency: found 1\.0, wanted a function"):
        qfunc.measure_placement(TARGET, X, latency=1.0)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"measure_placement\(k210\): found no runner, wanted a runner of this machine"):
        qfunc.measure_placement(targets.k210, X)
    other = evolve(TARGET, runtime=evolve(TARGET.runtime, runner=OnnxRuntimeRunner(machine=Browser())))
    with pytest.raises(SpecError, match=r"measure_placement\(onnxruntime\): found the runner of another machine"):
        qfunc.measure_placement(other, X)


def test_the_title_has_the_ratio() -> None:
    times = (PlacementTime("as given", Plan(), 1.0, 0.5), PlacementTime("in float", None, 2.0, 0.0))
    assert repr(MeasuredPlacement("chip", (), times, Plan())) == "MeasuredPlacement('chip', 0.50 of the time in float)"


class Sliced(nn.Module):
    """An op that both ways of capture name differently, with a mean that costs more on integers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x)[:, 4:] + self.first(x)[:, :4])


def test_the_edit_names_ops_as_quantize_does() -> None:
    found = qfunc.measure_placement(TARGET, X, progress=False, latency=costly({"add": 1.0, "slice": 1.0}))(Sliced().eval())
    assert found.plan.floats
    assert qfunc.quantize(found.edit(TARGET))(Sliced().eval())
