"""Edge TPU: the chip runs the ops before the first that it refuses, and LiteRT's CPU kernels the rest."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import pairwise
from math import floor
from typing import Any

import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import EmulationError, SpecError
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from qfunc.specs import Host, Kernel, Op, Refuse, RequireSizes, Rule, Scale, Scheme, Shift, Span, diff, edit, from_json, to_json
from qfunc.testing import check_target

EDGE = targets.edge_tpu


def calibrated(target: Any, net: nn.Module, x: Tensor) -> Any:
    """The network on the chip."""
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(net.eval()))


class Reshape(nn.Module):
    """Another view of each example."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(self, x: Tensor) -> Tensor:
        """[N, ...] -> [N, sizes]."""
        return x.reshape(x.shape[0], *self.sizes)


NO_OPERATION = "Google Coral, TensorFlow models on the Edge TPU, supported operations: no such operation"


def test_the_first_op_that_is_refused_and_all_after_it_run_on_the_host() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Hardswish(), nn.Conv2d(4, 4, 3), nn.MaxPool2d(2))
    model = calibrated(EDGE, net, torch.randn(2, 3, 10, 10))
    report = qfunc.explain(model)
    assert [(row.op, row.kind, row.why) for row in report.hosted] == [
        ("2", "hardswish", f"the chip refuses hardswish: {NO_OPERATION}. Use relu, sigmoid or tanh."),
        ("3", "conv", "it comes after '2'"),
        ("4", "max_pool", "it comes after '2'"),
    ]
    assert "on the host, LiteRT on the CPU" in str(report)
    units = json.loads(qfunc.deploy(EDGE)(model).files["qfunc.json"])["units"]
    assert [u.get("host", "") for u in units] == ["", *(row.why for row in report.hosted)]
    partition = Partition(QuantizedModel(model), EDGE)
    assert [u.integer for u in partition.units] == [False, True, True, True]  # nothing is known of the chip's own arithmetic
    assert partition.units[0].reason == "Google publishes the operations, not their rounding"
    assert qfunc.explain(qfunc.quantize(EDGE)(net)).hosted == ()  # sizes are not known yet


def test_the_file_is_that_of_litert() -> None:
    net, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(1, 3, 8, 8)
    ours, theirs = (qfunc.deploy(t)(calibrated(t, net, x)).files for t in (EDGE, targets.litert))
    assert ours["model.tflite"] == theirs["model.tflite"]


def test_the_laws_of_targets() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    check_target(EDGE, models=[(net.eval(), torch.randn(2, 3, 8, 8))])
    with pytest.raises(EmulationError) as e:
        qfunc.emulate(EDGE)(calibrated(EDGE, net, torch.randn(2, 3, 8, 8)))
    assert str(e.value) == (
        "emulate(edge_tpu): found no public arithmetic: Google publishes the operations, not their rounding, wanted a target "
        "whose kernels are known. The nearest target that can be emulated is targets.litert_reference."
    )


LAYERS: dict[str, tuple[Any, Any]] = {
    # A layer for a shape [N, C, H, W] or [N, ..., K], and whether the documents refuse it there, in words of Coral's page.
    "conv": (lambda s: nn.Conv2d(s[1], 4, 1), lambda s: False),
    "relu": (lambda s: nn.ReLU(), lambda s: False),
    "hardswish": (lambda s: nn.Hardswish(), lambda s: True),  # not in the table
    "leaky_relu": (lambda s: nn.LeakyReLU(), lambda s: True),  # not in the table
    "sigmoid": (lambda s: nn.Sigmoid(), lambda s: False),
    "flatten": (lambda s: nn.Flatten(), lambda s: False),
    "rows": (lambda s: Reshape(2, -1), lambda s: False),
    "five axes": (lambda s: Reshape(1, 2, 2, -1), lambda s: True),  # tensors of at most 4 axes, with the batch
    "linear": (lambda s: nn.Linear(s[-1], 8), lambda s: any(n > 1 for n in s[1:-1])),  # the output is one-dimensional
    "softmax": (lambda s: nn.Softmax(-1), lambda s: any(n > 1 for n in s[1:-1])),  # only a 1-D input
}
RANK_4 = ("conv",)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=5))
def test_a_chain_is_divided_where_the_documents_say(names: list[str]) -> None:
    x, layers, refused = torch.randn(2, 4, 4, 4), [nn.Conv2d(4, 4, 1)], [False]
    value = layers[0](x)
    for name in names:
        make, refuses = LAYERS[name]
        if name in RANK_4 and value.ndim != 4:
            continue
        layers.append(make(tuple(value.shape)))
        after = layers[-1](value)
        refused.append(refuses(tuple(value.shape)) or value.ndim > 4)
        value = after
    model = calibrated(EDGE, nn.Sequential(*layers), x)
    first = next((i for i, r in enumerate(refused) if r), len(refused))
    units = Partition(QuantizedModel(model), EDGE).units
    places = [(int(u.path.split(".")[0]), u.host) for u in units if u.kind in {*LAYERS, "reshape"}]  # no arithmetic on sizes
    assert [bool(host) for _, host in places] == [i >= first for i, _ in places]


def test_a_softmax_of_16_000_elements_is_the_longest() -> None:
    for length, hosted in ((16_000, ()), (16_001, ("1",))):
        net = nn.Sequential(nn.Linear(2, length), nn.Softmax(-1))
        assert tuple(row.op for row in qfunc.explain(calibrated(EDGE, net, torch.randn(2, 2))).hosted) == hosted


def test_an_op_in_float_runs_on_the_host() -> None:
    target = edit.pipe(EDGE, edit.skip(edit.name("1")))
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1))
    hosted = qfunc.explain(calibrated(target, net, torch.randn(1, 3, 4, 4))).hosted
    assert [(row.op, row.why) for row in hosted] == [("1", "it computes in float"), ("2", "it comes after '1'")]


BYTE = Scheme(scale=Scale(power_of_two=True))
LINEAR = Op(("linear", "tanh"))
CHIP = evolve(
    targets.qdq,
    name="chip",
    rules=(Rule(LINEAR, input=BYTE, weight=BYTE, output=BYTE),),
    kernels=(Kernel(Op("linear"), Shift("floor")),),
    legality=(),
    commuting=(),
    host=Host(
        "a CPU",
        refuses=RequireSizes(Op("linear"), "output", elements=Span(1, 4), because="manual, 2", do="Use fewer outputs."),
        kernels=Kernel(Op("linear"), Shift("half_up")),
    ),
)


def test_each_side_has_its_own_arithmetic() -> None:
    """The chip cuts off, its host rounds halves up: sums of Python's integers and exact halves."""
    sizes = (3, 4, 4, 5, 4)
    net, generator = nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes))), torch.Generator()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.uniform_(-1, 1, generator=generator.manual_seed(parameter.numel()))
    x = torch.rand(6, 3, generator=generator.manual_seed(1)) * 2 - 1
    model = calibrated(CHIP, net, x)
    assert [row.op for row in qfunc.explain(model).hosted] == ["2", "3"]
    emulation, values = qfunc.emulate(CHIP)(model), dict[str, Tensor]()
    ObservingInterpreter(emulation, values.__setitem__).run(x)
    encodings = {q.tensor: q.module.qparams().scale for q in QuantizedModel(model).quantizers}
    codes, scale = values["input_1_codes"].tolist(), Fraction(float(encodings["input_1"]))
    for i, layer in enumerate(net):
        s_w, s_y = (Fraction(float(encodings[n])) for n in (f"_{i}_weight", f"_{i}"))
        weight = [[min(max(round(Fraction(w) / s_w), -128), 127) for w in row] for row in layer.weight.tolist()]
        half = Fraction(1, 2) if i >= 2 else 0
        codes = [
            [
                min(max(floor(sum(int(a) * b for a, b in zip(row, w, strict=True)) * scale * s_w / s_y + half), -128), 127)
                for w in weight
            ]
            for row in codes
        ]
        scale = s_y
        assert values[f"_{i}"].tolist() == codes


def test_a_host_is_a_value() -> None:
    assert from_json(to_json(CHIP)) == CHIP
    assert diff(EDGE, evolve(EDGE, host=None)).startswith("host: Host('LiteRT on the CPU'")
    assert "run by the host, a CPU, with all after them" in str(CHIP)
    with pytest.raises(SpecError) as e:
        Host("a CPU", refuses=())
    assert str(e.value) == (
        "Host.refuses: found (), wanted a tuple of Refuse or RequireSizes, at least 1. Give a tuple of such values."
    )
    assert Host("a CPU", Refuse(Op("gelu"), because="manual, 2", do="Use relu.")).kernels == ()
