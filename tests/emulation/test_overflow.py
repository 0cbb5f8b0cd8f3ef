"""Units whose sums do not fit their accumulators: each kind of op, each arithmetic, biases with bits behind the point."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import evolve
from torch import Tensor, fx, nn

import qfunc
from qfunc import targets
from qfunc.errors import EmulationError, SpecError
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.specs import (
    Accumulator, DerivedQParams, FixedPoint, FloatMultiplier, FloatRequantize, Int, Kernel, Op, PerChannel, Rule,
    SaturatesAtEnd, SaturatesEachStep, Scale, Scheme, Shift, Target, Wraps,
)  # fmt: skip
from qfunc.testing import integer_oracle as oracle

KINDS = Op(("conv", "conv_transpose", "linear", "matmul", "mul"))
BITS = 12


def chip(arithmetic: Any, bias: Any = DerivedQParams(), bits: int = 8) -> Target:
    """A chip with power-of-two scales and one arithmetic."""
    byte = Scheme(Int(bits), Scale(power_of_two=True))
    weight = Scheme(Int(bits), Scale(PerChannel(), power_of_two=True))
    rules = (Rule(KINDS, input=byte, weight=weight, bias=bias, output=byte),)
    empty: dict[str, Any] = {"fusions": (), "ties": (), "legality": (), "commuting": ()}
    return evolve(targets.qdq, name="chip", rules=rules, kernels=(Kernel(KINDS, arithmetic),), **empty)


class Matmul(nn.Module):
    """x times its transpose, or times a constant."""

    def __init__(self, shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.weight = None if shape is None else nn.Parameter(torch.rand(shape, generator=torch.Generator().manual_seed(1)))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (x.mT if self.weight is None else self.weight)


class Square(nn.Module):
    """An elementwise product."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x


def seeded(layer: nn.Module) -> nn.Module:
    """Random weights, of one sign for the most part, and a small last output."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in layer.named_parameters():
            tensor.uniform_(-0.4, 1.0, generator=generator).mul_(0.1 if name == "bias" else 1.0)
    return layer


NETS = {
    "conv": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 7, 6)),
    "same": (lambda: nn.Conv2d(3, 6, (3, 2), padding="same", dilation=2), (2, 3, 7, 6)),
    "conv1d": (lambda: nn.Conv1d(3, 5, 4, padding=2, dilation=2), (2, 3, 9)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (1, 2, 3, 4, 3)),
    "one image": (lambda: nn.Conv2d(3, 4, 3, padding=1), (3, 6, 5)),
    "conv_transpose": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), (2, 4, 4, 3)),
    "linear": (lambda: nn.Linear(20, 5), (3, 4, 20)),
    "matmul": (Matmul, (2, 5, 20)),
    "matmul by a weight": (lambda: Matmul((20, 3)), (2, 5, 20)),
    "matmul by weights": (lambda: Matmul((2, 20, 3)), (2, 5, 20)),
    "mul": (Square, (2, 5, 20)),
}
ARITHMETICS = {
    "Shift": lambda a: Shift("half_up", accumulator=a),
    "FixedPoint": lambda a: FixedPoint("half_up", accumulator=a),
    "FloatMultiplier": lambda a: FloatMultiplier(accumulator=a),
    "FloatRequantize": lambda a: FloatRequantize(accumulator=a),
}


def emulated(net: str, arithmetic: Any, **chosen: Any) -> tuple[dict[str, Tensor], Tensor, fx.GraphModule]:
    """The values of the emulation's nodes, its output, and the calibrated model."""
    make, shape = NETS[net]
    x = torch.rand(shape, generator=torch.Generator().manual_seed(3)) * 2 - 0.5
    target = chip(arithmetic, **chosen)
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(seeded(make()).eval()))
    emulation, values = qfunc.emulate(target)(calibrated), dict[str, Tensor]()
    with torch.inference_mode():
        output = ObservingInterpreter(emulation, values.__setitem__).run(x)
    return values, output, calibrated


def sums(values: dict[str, Tensor], exact: str = "acc") -> tuple[Tensor, Tensor]:
    """The exact sums, and the sums as the accumulator stores them."""
    (found,) = [v for k, v in values.items() if k.endswith("_stored")]
    (acc,) = [v for k, v in values.items() if k.endswith(f"_{exact}")]
    return acc, found


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("net", NETS)
def test_each_kind_of_op_overflows(net: str, arithmetic: str) -> None:
    make = ARITHMETICS[arithmetic]
    exact, bits = "product" if net == "mul" else "acc", BITS
    values, output, _ = emulated(net, make(bits))
    acc, found = sums(values, exact)
    assert found.long().flatten().tolist() == [oracle.wrap(int(v), bits) for v in acc.flatten()]
    assert not torch.equal(found.float(), acc.float())
    values, clamped, _ = emulated(net, make(Accumulator(bits, SaturatesAtEnd())))
    acc, found = sums(values, exact)
    assert found.long().flatten().tolist() == [oracle.saturate(int(v), bits) for v in acc.flatten()]
    assert not torch.equal(output, clamped)
    # All products in one step: what is left are the clamps of the bias, which fits, and of the sum.
    _, stepped, _ = emulated(net, make(Accumulator(bits, SaturatesEachStep(products=10**6))))
    assert torch.equal(stepped, clamped)
    wide, unlike, _ = emulated(net, make(40))
    nodes = [k for k in wide if k.endswith("_stored")]  # a proof costs no node; the length of a matmul is that of a tensor
    assert nodes == (["matmul_stored"] if net == "matmul" else [])
    assert not torch.equal(unlike, clamped)


def test_each_step_of_a_linear_layer_is_the_sum_of_integers() -> None:
    for last in (False, True):
        overflow = SaturatesEachStep(bias="last" if last else "first")
        values, _, _ = emulated("linear", Shift("floor", accumulator=Accumulator(BITS, overflow)))
        _, found = sums(values)
        x, weight, bias = (next(v for k, v in values.items() if p in k) for p in ("codes", "weight", "bias"))
        for n, o in ((n, o) for n in range(12) for o in range(5)):
            terms = [int(a * b) for a, b in zip(x.reshape(12, 20)[n], weight[o], strict=True)]
            b = int(bias[o])
            wanted = oracle.saturating_sum(terms, BITS, *((0, b) if last else (b, 0)))
            assert int(found.reshape(12, 5)[n, o]) == wanted


@pytest.mark.parametrize("overflow", [Wraps(), SaturatesAtEnd(), SaturatesEachStep(), SaturatesEachStep(bias="last")], ids=repr)
def test_bits_behind_the_point_are_in_addition(overflow: Any) -> None:
    """A bias of 12 bits with a finer scale than the products': the accumulator has 12 bits and those of the bias."""
    fine = Scheme(Int(12), Scale(power_of_two=True, high=2.0**-16))
    values, _, _ = emulated("linear", Shift("floor", accumulator=Accumulator(BITS, overflow)), bias=fine)
    acc, found = sums(values, "sum")
    x, weight, bias = (next(v for k, v in values.items() if p in k) for p in ("codes", "weight", "bias"))
    exact = x.double() @ weight.double().T
    n = round(float(((acc - bias) / exact)[exact != 0][0].log2()))
    assert n > 0
    for i, o in ((i, o) for i in range(12) for o in range(5)):
        terms = [int(a * b) << n for a, b in zip(x.reshape(12, 20)[i], weight[o], strict=True)]
        b, bits = int(bias[o]), BITS + n
        match overflow:
            case Wraps():
                wanted = oracle.wrap(sum(terms) + b, bits)
            case SaturatesAtEnd():
                wanted = oracle.saturate(sum(terms) + b, bits)
            case SaturatesEachStep(bias=when):
                wanted = oracle.saturating_sum(terms, bits, *((b, 0) if when == "first" else (0, b)))
        assert int(found.reshape(12, 5)[i, o]) == wanted


def test_a_channel_that_fits_stays_exact() -> None:
    """Only the channels at risk are summed step by step."""
    layer = seeded(nn.Linear(20, 4))
    with torch.no_grad():
        layer.weight[1:3, 1:] = 0
    target = chip(Shift("floor", accumulator=Accumulator(16, SaturatesEachStep())))
    x = torch.rand(3, 20, generator=torch.Generator().manual_seed(3))
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(layer))
    emulation = qfunc.emulate(target)(calibrated)
    (channels,) = [b for name, b in emulation.named_buffers() if name.endswith(".channels")]
    assert channels.tolist() == [0, 3]


def test_sums_beyond_float64_are_refused() -> None:
    target = chip(Shift("floor", accumulator=8), bits=16)
    layer = nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.fill_(0.0)
    target = evolve(target, rules=(evolve(target.rules[0], bias=Scheme(Int(16), Scale(power_of_two=True, high=2.0**-62))),))
    calibrated = qfunc.calibrate([torch.ones(1, 2)], progress=False)(qfunc.quantize(target)(layer))
    with pytest.raises(EmulationError, match=r"unit 'linear': found sums up to .*, wanted sums below 2\^53\."):
        qfunc.emulate(target)(calibrated)


MESSAGES = {
    "a width": (
        lambda: Shift("floor", accumulator=4),
        "Shift.accumulator: found 4, wanted an Accumulator, or the bits of one that wraps, an int in [8, 64]. "
        "Give such a value.",
    ),
    "an order": (
        lambda: SaturatesEachStep(("channel", "row")),
        "SaturatesEachStep.order: found ('channel', 'row'), wanted the words \"channel\" and \"position\", outermost first. "
        "Name both once.",
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_messages(case: str) -> None:
    make, message = MESSAGES[case]
    with pytest.raises(SpecError) as caught:
        make()
    assert str(caught.value) == message
