"""Light ops run on integers where ops on integers read them, or beside no float op; what a user names keeps its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import networkx
import pytest
import torch
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc.estimators import Ema
from qfunc.specs import Op, Target, edit
from qfunc.targets import litert, openvino, tosa
from tests.onnxruntime_target import ONNXRUNTIME

LIGHT, FLOAT, MOVES, INTEGER = ("add", "mul"), ("sqrt", "exp"), ("flip",), ("conv",)


class Program(nn.Module):
    """Steps (kind, the values that it reads), each named by its number; step 0 is the input."""

    def __init__(self, steps: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        super().__init__()
        self.steps = tuple(steps)
        self.convs = nn.ModuleDict({str(i): nn.Conv2d(4, 4, 1) for i, (kind, _) in enumerate(steps) if kind == "conv"})

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        values, read = [x], set[int]()
        for index, (kind, places) in enumerate(self.steps):
            given, read = [values[p] for p in places], read | {*places}
            values.append(self.convs[str(index)](given[0]) if kind == "conv" else _value(kind, given))
        return tuple(v for i, v in enumerate(values) if i not in read)


def _value(kind: str, given: list[Tensor]) -> Tensor:
    match kind:
        case "add":
            return given[0] + given[-1]
        case "mul":
            return given[0] * given[-1]
        case "sqrt":
            return given[0].abs().sqrt()
        case "exp":
            return (-given[0].abs()).exp()
    return given[0].reshape(given[0].shape[0], 2, -1).reshape(given[0].shape)  # moves values


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, tuple[int, ...]]]:
    """Programs in which values have several readers, and several kinds of ops beside each other."""
    steps: list[tuple[str, tuple[int, ...]]] = [("conv", (0,))]
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from((*LIGHT, *LIGHT, *FLOAT, *MOVES, *INTEGER)))
        place = st.integers(max(0, len(steps) - 2), len(steps))
        both = (draw(place), draw(place)) if kind in LIGHT else (draw(place),)
        steps.append((kind, (min(both), max(both)) if kind in LIGHT and both[0] != both[1] else both[:1]))
    return [(kind, places if kind not in LIGHT or len(places) == 2 else (places[0], 0)) for kind, places in steps]


def islands(steps: Sequence[tuple[str, tuple[int, ...]]]) -> set[int]:
    """By networkx: the components, beside a float step, of moving steps and of light ones that no convolution needs."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(1, len(steps) + 1))
    graph.add_edges_from((p, i) for i, (_, places) in enumerate(steps, 1) for p in places if p)
    kind = {i: steps[i - 1][0] for i in graph}
    between = graph.subgraph([i for i in graph if kind[i] not in FLOAT])
    on_codes = graph.edge_subgraph([(a, b) for a, b in between.edges if kind[a] not in INTEGER])  # a convolution ends a path
    needed = {i for n in on_codes if kind[n] in INTEGER for i in networkx.ancestors(on_codes, n)}
    free = graph.to_undirected().subgraph([i for i in graph if kind[i] in MOVES or (kind[i] in LIGHT and i not in needed)])
    found = set[int]()
    for component in networkx.connected_components(free):
        beside = {kind[n] for i in component for n in networkx.all_neighbors(graph, i)}
        if beside & {*FLOAT}:
            found |= {i for i in component if kind[i] in LIGHT}
    return found


def float_kinds(steps: Sequence[tuple[str, tuple[int, ...]]], target: Target) -> list[str]:
    x = [torch.randn(2, 4, 6, 2)]
    calibrated = qfunc.calibrate(x, progress=False)(qfunc.quantize(target)(Program(steps).eval()))
    return sorted(row.kind for row in qfunc.explain(calibrated).floats if row.kind in LIGHT)


def check_program(steps: list[tuple[str, tuple[int, ...]]]) -> None:
    wanted = sorted(steps[i - 1][0] for i in islands(steps))
    assert float_kinds(steps, ONNXRUNTIME) == wanted


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_the_float_ones_are_those_of_the_components(steps: list[tuple[str, tuple[int, ...]]]) -> None:
    check_program(steps)


@pytest.mark.thorough
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_the_float_ones_are_those_of_the_components_of_many(steps: list[tuple[str, tuple[int, ...]]]) -> None:
    check_program(steps)


MAGNITUDE = [("conv", (0,)), ("exp", (1,)), ("sqrt", (1,)), ("add", (2, 3)), ("sqrt", (4,)), ("conv", (5,))]
"""sqrt(re^2 + im^2) of a spectrogram between convolutions: the sum is an island."""
CLUSTER = [("exp", (0,)), ("add", (0, 1)), ("flip", (2,)), ("mul", (1, 3)), ("sqrt", (4,)), ("conv", (0,))]
BESIDE = [("conv", (0,)), ("add", (0, 1)), ("sqrt", (2,)), ("conv", (2,))]
LAST = [("conv", (0,)), ("mul", (0, 1)), ("sqrt", (2,))]
AT_THE_END = [("conv", (0,)), ("add", (0, 1))]
ALONE = [("sqrt", (0,)), ("add", (0, 1)), ("mul", (0, 2))]


@pytest.mark.parametrize("target", [ONNXRUNTIME, litert, openvino], ids=lambda t: t.name)
@pytest.mark.parametrize(
    ("steps", "floats"),
    [(MAGNITUDE, ["add"]), (CLUSTER, ["add", "mul"]), (BESIDE, []), (LAST, ["mul"]), (AT_THE_END, []), (ALONE, [])],
    ids=["between functions", "cluster", "before a convolution", "before a function", "at the end", "no convolution"],
)
def test_examples(steps: list[Any], floats: list[str], target: Target) -> None:
    found = float_kinds(steps, target)
    assert [kind for kind in found if kind in floats] == floats
    assert found == floats or target is openvino  # whose additions are float where a real value is added


class Head(nn.Module):
    """Boxes and scores of a detector, joined at the end or before another convolution."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.boxes, self.scores = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 2, 1)
        self.last = nn.Conv2d(6, 2, 1) if last else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] -> [N, C, H, W]."""
        return self.last(torch.cat([self.boxes(x) * 600, self.scores(x).sigmoid()], 1))


@pytest.mark.parametrize("target", [ONNXRUNTIME, litert], ids=lambda t: t.name)
def test_a_join_at_the_end_keeps_the_scales_of_its_parts(target: Target) -> None:
    torch.manual_seed(0)
    x = [torch.randn(2, 3, 8, 8)]
    kinds, values = dict[bool, list[str]](), dict[bool, int]()
    for last in (False, True):
        calibrated = qfunc.calibrate(x, progress=False)(qfunc.quantize(target)(Head(last).eval()))
        kinds[last] = sorted(row.kind for row in qfunc.explain(calibrated).floats)
        values[last] = len(calibrated(x[0])[:, 4:].unique())
    assert "concat" in kinds[False]
    assert "concat" not in kinds[True]
    assert values[False] > 20  # of 256 codes; the boxes have the range of 600


def test_a_target_without_the_words_is_as_before() -> None:
    plain = evolve(ONNXRUNTIME, rules=tuple(evolve(rule, beside_integers=False) for rule in ONNXRUNTIME.rules))
    assert float_kinds(MAGNITUDE, plain) == []
    quantized = qfunc.quantize(tosa)(nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()))  # a chip of integers alone has no islands
    assert not any(rule.beside_integers for rule in tosa.rules)
    assert qfunc.explain(quantized).floats == ()


ACTIVATION = ONNXRUNTIME.rules[0].input


@pytest.mark.parametrize(
    "change",
    [
        edit.override(Op("add"), activations={"estimator": Ema()}),
        edit.add(Op("add"), input=ACTIVATION, output=ACTIVATION),
    ],
    ids=["an override", "a rule"],
)
def test_what_a_user_names_stays(change: Any) -> None:
    assert float_kinds(MAGNITUDE, change(ONNXRUNTIME)) == []


def test_an_island_may_be_skipped() -> None:
    assert float_kinds(MAGNITUDE, edit.skip(edit.op("add"))(ONNXRUNTIME)) == ["add"]


def test_explain_says_why() -> None:
    x = [torch.randn(2, 4, 6, 2)]
    calibrated = qfunc.calibrate(x, progress=False)(qfunc.quantize(ONNXRUNTIME)(Program(MAGNITUDE).eval()))
    for model in (calibrated, qfunc.quantize(ONNXRUNTIME)(Program(MAGNITUDE).eval())):
        (why,) = (row.why for row in qfunc.explain(model).floats if row.kind == "add")
        assert why == "no op on integers reads it, but float ops are beside it, and its rule is `beside_integers`"


def test_the_file_is_the_float_one_there() -> None:
    """The runtime computes what was emulated, with the sum in float."""
    x = [torch.randn(2, 4, 6, 2)]
    calibrated = qfunc.calibrate(x, progress=False)(qfunc.quantize(ONNXRUNTIME)(Program(MAGNITUDE).eval()))
    report = qfunc.verify(ONNXRUNTIME, latency=False)(calibrated, x)
    assert "add" not in {row.name for row in report.of("codes")}
    assert "bit-exact" in report.agreement
