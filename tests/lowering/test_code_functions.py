"""CodesRunner: a chip with zero points and additions, whose functions compute in Python's rationals, against the emulation."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from torch import Tensor, nn

import qfunc
from qfunc.errors import SpecError, VerifyError
from qfunc.estimators import MinMax
from qfunc.functions import Fixed
from qfunc.lowering import CodeOp, CodesRunner, ExplicitQdqLowering
from qfunc.specs import (
    Algorithm,
    Bounds,
    Copy,
    DerivedQParams,
    FixedQParams,
    FloatKernel,
    FloatMultiplier,
    FloatRequantize,
    Fusion,
    FusionStep,
    Int,
    Kernel,
    Op,
    PerChannel,
    Rule,
    Runtime,
    SameQParams,
    Scale,
    Scheme,
    Target,
    ZeroPoint,
    from_json,
    to_json,
)  # fmt: skip
from qfunc.testing import check_each_kind

BYTE, WEIGHT = Scheme(Int(8), zero_point=ZeroPoint()), Scheme(Int(8, low=-127), Scale(PerChannel()))
MAC, CLAMPS, MOVES = Op(("conv", "linear")), FusionStep(Op(("relu", "clip"))), ("flatten", "max_pool", "reshape")
INT8 = (("input", (Int(8),)), ("output", (Int(8),)))


def float64(value: Fraction) -> Fraction:
    return Fraction(value.numerator / value.denominator)


def rounded(value: Fraction, op: CodeOp) -> int:
    return min(max(round(value) + op.zero_point, op.low), op.high)


def mac(op: CodeOp) -> Any:
    """Products in int64, M in float64, one rounding to even."""
    x, w, b = op.inputs if len(op.inputs) == 3 else (*op.inputs, None)
    # Codes minus their zero point are exact in float64, and so are their sums.
    codes, weight = (torch.from_numpy(t.codes.astype(np.float64) - t.zero_point) for t in (x, w))
    bias = None if b is None else torch.from_numpy(b.codes.astype(np.float64))
    if op.kind == "Conv":
        given = op.attributes["strides"], op.attributes["pads"][:2], op.attributes["dilations"], op.attributes["group"]
        acc = F.conv2d(codes, weight, bias, *given).movedim(1, -1)
    else:
        acc = F.linear(codes, weight, bias)
    factors = [float64(Fraction(x.scale) * Fraction(s) / Fraction(op.scale)) for s in np.broadcast_to(w.scale, len(weight))]
    rows = [
        [rounded(float64(int(a) * m), op) for a, m in zip(row, factors, strict=True)] for row in acc.reshape(-1, len(weight))
    ]
    result = np.array(rows).reshape(acc.shape)
    return np.moveaxis(result, -1, 1) if op.kind == "Conv" else result


def add(op: CodeOp) -> Any:
    """Both terms are exact; the sum and the quotient are rounded to float64."""
    terms = [[(int(q) - t.zero_point) * Fraction(t.scale) for q in t.codes.ravel()] for t in op.inputs]
    sums = [rounded(float64(float64(a + b) / Fraction(op.scale)), op) for a, b in zip(*terms, strict=True)]
    return np.array(sums).reshape(op.inputs[0].codes.shape)


RUNNER = CodesRunner({"Conv": mac, "Gemm": mac, "Add": add})
CHIP = Target(
    name="codes",
    rules=(Rule(MAC, input=BYTE, weight=WEIGHT, bias=DerivedQParams(), output=BYTE), Rule(Op("add"), input=BYTE, output=BYTE)),
    fusions=(Fusion(MAC | Op("add"), CLAMPS),),
    kernels=(
        Kernel(MAC, FloatMultiplier(dtype="float64"), formats=INT8),
        Kernel(Op("add"), FloatKernel("float64", wide=True), formats=INT8),
        Kernel(Op(MOVES), Copy(), integer_if=SameQParams(), formats=INT8),
    ),
    commuting=MOVES,
    runtime=Runtime("rationals", runner=RUNNER),
    lowering=ExplicitQdqLowering(),
    source="invented",
    weight=Algorithm(MinMax(), Fixed()),
    activation=Algorithm(MinMax(), Fixed()),
)


class Net(nn.Module):
    """Zero points, an addition with a clamp, moves of codes, a host's mean, and an output without codes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 1, bias=False)
        self.head, self.last = nn.Linear(36, 5), nn.Linear(5, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        x = F.relu6(x + self.second(x))
        x = self.head(F.max_pool2d(x, 2).flatten(1))
        return torch.sigmoid(self.last(x - x.mean(1, keepdim=True)))


def verified(chip: Target, net: nn.Module | None = None) -> Any:
    torch.manual_seed(0)
    net, x = (net or Net()).eval(), [torch.randn(2, 2, 6, 6) * 3 + 1]
    return qfunc.verify(chip)(qfunc.calibrate(x, progress=False)(qfunc.quantize(chip)(net)), x)


def differing(chip: Target) -> int:
    return sum(row.mismatches for row in verified(chip).of("codes"))


def test_functions_on_codes_compute_the_emulation() -> None:
    """Of the host's ops, ONNX's reference evaluator and PyTorch may differ by float32; no code of the chip does."""
    report = verified(CHIP)
    codes = {row.name: row.mismatches for row in report.of("codes")}
    assert {"x", "relu", "second", "relu6", "max_pool2d", "flatten", "head", "last"} <= codes.keys()
    assert not any(codes.values())
    assert report.agreement.startswith("bit-exact")


@pytest.mark.thorough
def test_each_kind_with_ties_and_zero_points() -> None:
    assert check_each_kind(CHIP, examples=4) == {}


def test_the_target_is_a_value() -> None:
    assert from_json(to_json(CHIP), classes=(CodesRunner, mac, add)) == CHIP


def test_bounds_round_as_the_chip_says() -> None:
    """At the scale 0.09, the bound 6 is 66.7 codes."""
    given = Rule(Op("add"), input=BYTE, output=FixedQParams(BYTE, 0.09))
    kernels = tuple(evolve(k, bounds=Bounds("floor")) for k in CHIP.kernels)
    chip = evolve(CHIP, rules=(CHIP.rules[0], given), kernels=kernels)
    assert differing(evolve(chip, runtime=Runtime("rationals", runner=evolve(RUNNER, bounds=Bounds("floor"))))) == 0
    assert differing(chip) > 0


def error_of(runner: CodesRunner, net: nn.Module | None = None, **changes: Any) -> str:
    chip = evolve(CHIP, runtime=Runtime("rationals", runner=runner), **changes)
    with pytest.raises(VerifyError) as raised:
        verified(chip, net)
    return str(raised.value)


def without(kind: str) -> CodesRunner:
    return CodesRunner(tuple(pair for pair in RUNNER.functions if pair[0] != kind))


def instead(kind: str, function: Callable[[CodeOp], Any]) -> CodesRunner:
    return CodesRunner({**dict(RUNNER.functions), kind: function})


def too_large(op: CodeOp) -> Any:
    return np.full(op.inputs[0].codes.shape, 300)


def test_errors_name_the_op() -> None:
    assert error_of(without("Add")) == (
        "CodesRunner, 'add': found the op 'Add' on codes, wanted a function for it beside those for Conv, Gemm. Add \"Add\": a "
        "function of a CodeOp that returns codes."
    )
    assert error_of(instead("Add", too_large)) == (
        "CodesRunner, 'add': found codes from 300 to 300 of the function for 'Add', wanted codes in [-128, 127]. Clamp them to "
        "op.low and op.high."
    )
    joined = (Fusion(Op("conv"), (FusionStep(Op("add")),)),)
    kernels = (Kernel(MAC, FloatRequantize(), formats=INT8), *CHIP.kernels[1:])
    assert error_of(RUNNER, Residual(), fusions=joined, kernels=kernels) == (
        "CodesRunner, 'add': found a unit of several ops, wanted one op, and activations that clamp. Describe it by kernels of "
        "single ops, or write a runner that executes the unit."
    )
    with pytest.raises(SpecError) as raised:
        CodesRunner({})
    assert str(raised.value) == (
        "CodesRunner.functions: found (), wanted a mapping from ONNX operators to functions of a CodeOp. Give e.g. "
        '{"Conv": conv, "Add": add}.'
    )


class Residual(nn.Module):
    """A convolution that is fused with the addition after it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + x
