"""What check_target says about the codes that differ: the same with and without inner tensors; one finding for each kind.

The chip is a calculator in Python's rationals, with a choice of bugs; the figures of the messages are computed by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from attrs import frozen
from torch import Tensor, nn

from qfunc.errors import SpecError
from qfunc.estimators import MinMax
from qfunc.functions import Fixed
from qfunc.lowering import QdqLowering
from qfunc.specs import Algorithm, DerivedQParams, FloatKernel, Int, Kernel, Op, Rule, Runtime, Scale, Scheme, Shift, Target
from qfunc.testing import check_each_kind, check_target
from qfunc.testing.one_op import KINDS

CODES = Scheme(Int(8), Scale(power_of_two=True))
CHIP = Target(
    name="rationals",
    rules=(Rule(Op(("linear", "add")), input=CODES, weight=CODES, bias=DerivedQParams(), output=CODES),),
    kernels=(Kernel(Op("linear"), Shift("half_even")), Kernel(Op("add"), FloatKernel("float64"))),
    runtime=Runtime("a calculator"),
    lowering=QdqLowering(),
    source="invented",
    weight=Algorithm(MinMax(), Fixed()),
    activation=Algorithm(MinMax(), Fixed()),
)
Round = Callable[[Fraction], int]


def half_up(value: Fraction) -> int:
    return floor(value + Fraction(1, 2))


def one_more_below(bound: int) -> Round:
    return lambda value: round(value) + (value < bound)


def execute(artifact: Any, inputs: list[Tensor], rounds: dict[str, Round]) -> tuple[list[Any], dict[str, Any]]:
    """Run Gemm and Add of codes; all values are exact in float64, because all scales are powers of two."""
    graph = onnx.load_from_string(artifact.files["model.onnx"]).graph
    values = {i.name: onnx.numpy_helper.to_array(i).astype(np.float64) for i in graph.initializer}
    values |= {i.name: x.double().numpy() for i, x in zip(graph.input, inputs, strict=True)}
    kinds: dict[str, str] = {}
    for node in graph.node:
        x, *rest = (values[name] for name in node.input)
        kinds[node.output[0]] = node.op_type
        if node.op_type == "QuantizeLinear":
            rule = rounds.get(kinds.get(node.input[0], ""), round)
            rounded = np.array([rule(Fraction(v)) for v in (x / rest[0]).ravel()], np.float64).reshape(x.shape)
            result = rounded.clip(-128, 127)
        elif node.op_type == "DequantizeLinear":
            result = x * rest[0]
        else:
            result = x + rest[0] if node.op_type == "Add" else x @ rest[0].T + (rest[1] if len(rest) > 1 else 0)
        values[node.output[0]] = result
    return [values[o.name] for o in graph.output], values


@frozen(eq=False)
class Runs:
    rounds: dict[str, Round]

    def run(self, artifact: Any, inputs: Any) -> list[Any]:
        return execute(artifact, inputs, self.rounds)[0]


@frozen(eq=False)
class Shows:
    rounds: dict[str, Round]

    def run(self, artifact: Any, inputs: Any) -> list[Any]:
        return execute(artifact, inputs, self.rounds)[0]

    def inside(self, artifact: Any) -> Any:
        return Inside(artifact, self.rounds)


class Inside:
    units = None
    difference = ""

    def __init__(self, artifact: Any, rounds: dict[str, Round]) -> None:
        graph = onnx.load_from_string(artifact.files["model.onnx"]).graph
        self.artifact, self.rounds = artifact, rounds
        self.tensors = [node.output[0] for node in graph.node if node.op_type == "QuantizeLinear"]

    def run(self, inputs: Any) -> Any:
        outputs, values = execute(self.artifact, inputs, self.rounds)
        return outputs, {name: values[name] for name in self.tensors}


class Add(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


def message(runner: Any, model: nn.Module, example: Any) -> list[str]:
    with pytest.raises(AssertionError) as raised:
        check_target(CHIP, run=runner, models=[(model.eval(), example)])
    return str(raised.value).splitlines()


IDENTITY = nn.Linear(1, 1, bias=False)
torch.nn.init.constant_(IDENTITY.weight, 1.0)
"""The code of the weight is 64, of scale 1/64."""
LINE = torch.arange(-8.0, 8.0)[:, None] / 8
"""Codes q = 8 k of scale 1/64 are sums 512 k of scale 1/4096.  The batch of 2 x has codes 16 k."""


@pytest.mark.parametrize("runner", [Runs, Shows])
def test_sums_of_one_range_are_named(runner: Any) -> None:
    """Codes q of the output have the scale 1/64: sums 64 q, none is rounded.  Below -32 codes, the chip has one more."""
    lines = message(runner({"Gemm": one_more_below(-32)}), IDENTITY, LINE)
    assert lines[1:5] == [
        "The first to differ: output 0, 10 of 32 elements, by 1 LSB"
        if runner is Runs
        else "The first to differ: linear, 10 of 32 elements, by 1 LSB",
        "Its first element: batch 0, [0, 0]: -1 emulated, -0.984375 by the runtime"
        if runner is Runs
        else "Its first element: batch 0, [0, 0]: -64 emulated, -63 by the runtime",
        "There in the emulation: linear = -64, linear_acc = -4096; before rounding -64",
        "All that differ: 10 of 32 codes, each by +1, no tie, at most 0.5 from midway; their accumulators are in [-8192, "
        "-2560], those of equal codes that are not clamped in [-2048, 7168]",
    ]


@pytest.mark.parametrize("runner", [Runs, Shows])
def test_operands_of_an_addition_are_shown_and_ties_named(runner: Any) -> None:
    """96 codes and halves of codes, from -3.5 to 3.5.  Half up and half even agree on every second tie."""
    x, y = (torch.arange(8.0)[:, None] - 3.5) / 64, torch.full((8, 1), 1.5)
    lines = message(runner({"Add": half_up}), Add(), (x, y))
    assert [line for line in lines if line.startswith(("There", "All"))] == [
        "There in the emulation: add = 92, x_codes = -112, y_codes = 96; before rounding 92.5, a tie",
        "All that differ: 4 of 16 codes, each by +1, all ties; their values before rounding are in [92.5, 98.5], those of ties "
        "that are equal in [93.5, 99.5]",
    ]


@pytest.mark.thorough
def test_each_kind_has_its_own_finding() -> None:
    found = check_each_kind(CHIP, run=Runs({"Gemm": one_more_below(-32), "Add": half_up}).run, examples=5)
    assert list(found) == ["linear", "add"]
    units = [re.findall("^Its unit: .*, Kernel\\(Op\\('([a-z]*)'\\)", text, re.MULTILINE) for text in found.values()]
    assert units == [["linear"], ["add"]]
    assert list(check_each_kind(CHIP, run=Runs({"Add": half_up}).run, examples=5)) == ["add"]
    assert check_each_kind(CHIP, run=Runs({}).run, examples=5) == {}


def test_a_kind_without_networks_is_refused() -> None:
    text = (
        f"testing.strategies.networks_of: found 'embedding', wanted {', '.join(KINDS)}. Give check_target models= of your own."
    )
    with pytest.raises(SpecError) as raised:
        check_each_kind(CHIP, run=Runs({}).run, kinds=("embedding",))
    assert str(raised.value) == text
