"""Arithmetic in float64 against rationals: each step is a rational that Python's division of integers rounds once."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc.errors import EmulationError, SpecError
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.numerics.kernels import integer, requantize
from qfunc.specs import FixedQParams, FloatKernel, FloatMultiplier, Int, KeepFloat, Kernel, Op, Rule, Scheme, Target, ZeroPoint
from qfunc.targets.arithmetics import Mlas
from qfunc.testing.oracle import clamp, float32, rounded
from tests.specs.witnesses.witness import chip

M, B = float.fromhex("0x1.3333333333333p-2"), 0.1
"""0.3 and 0.1, of which float32 keeps 24 bits."""
WIDE = 2**24
ACCS = [*range(-40, 40), *(7919 * k for k in range(-60, 60)), *range(WIDE - 400, WIDE), *(10 * k + 5 for k in range(-500, 500))]
"""Small and large sums, and odd multiples of 5, whose products with 0.3 are ties in rationals."""
PLACES, ROUNDINGS = ("before", "after"), ("half_even", "half_away", "floor")
BYTE = Scheme(Int(8), zero_point=ZeroPoint())


def float64(value: Fraction) -> Fraction:
    return Fraction(value.numerator / value.denominator)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_product_is_rounded_once(place: str, rounding: str) -> None:
    accs, zero = [*ACCS, *(2**40 + k for k in range(200))], -7

    def code(acc: int) -> int:
        v = float64(Fraction(acc) * Fraction(M))
        v, z = (float64(v + zero), 0) if place == "before" else (v, zero)
        return clamp(rounded(v, rounding) + z, -WIDE, WIDE)

    acc, m = torch.tensor(accs, dtype=torch.float64), torch.tensor(M, dtype=torch.float64)
    found = integer.requantize(acc, m, zero, -WIDE, WIDE, rounding, place)
    assert found.dtype == torch.float32
    assert found.tolist() == [code(a) for a in accs]
    assert found.tolist() != integer.requantize(acc, m.float(), zero, -WIDE, WIDE, rounding, place).tolist()


@pytest.mark.parametrize("place", PLACES)
def test_a_float_bias(place: str) -> None:
    """acc * M + b, each step in float64, z in b or after R; a result without codes is rounded to float32 at the end."""
    zero = 5

    def code(acc: int) -> int:
        b = float64(Fraction(B) + zero) if place == "before" else Fraction(B)
        v = float64(float64(Fraction(acc) * Fraction(M)) + b)
        return clamp(rounded(v, "half_even") + (0 if place == "before" else zero), -WIDE, WIDE)

    acc, (m, b) = torch.tensor(ACCS, dtype=torch.float64), torch.tensor([M, B], dtype=torch.float64)
    found = requantize.requantize_offset(acc, m, b, zero, -WIDE, WIDE, "half_even", place, False)
    assert found.tolist() == [code(a) for a in ACCS]
    sums = [float64(float64(Fraction(a) * Fraction(M)) + Fraction(B)) for a in ACCS]
    assert [Fraction(v) for v in requantize.dequantize_acc(acc, m, b, False).tolist()] == [float32(v) for v in sums]


def scale(k: int) -> float:
    return float(torch.tensor(k / 640))


class Sum(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


def target(arithmetic: object, x: float, y: float, z_x: int, z_y: int, weight: float = 1.0) -> Target:
    """A chip whose scales are given."""
    given, made = FixedQParams(BYTE, x, z_x), FixedQParams(BYTE, y, z_y)
    rules = Rule(Op(("conv", "add", "mul", "mean", "global_avg_pool", "prelu")), input=given,
                 weight=FixedQParams(Scheme(), weight), bias=KeepFloat(), output=made)  # fmt: skip
    return chip(Kernel(Op(("conv", "add", "mul", "mean", "global_avg_pool", "prelu")), arithmetic), rules=rules)


def codes_of(chip: Target, net: nn.Module, *inputs: Tensor) -> dict[str, list[float]]:
    """The values of an emulation by name."""
    calibrated = qfunc.calibrate([inputs], progress=False)(qfunc.quantize(chip)(net.eval()))
    found: dict[str, list[float]] = {}
    watch = ObservingInterpreter(qfunc.emulate(chip)(calibrated), lambda n, v: found.update({n: v.flatten().tolist()}))
    with torch.inference_mode():
        watch.run(*inputs)
    return found


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("x", "y"), [(192, 64), (64, 192), (10, 30), (7, 2), (64, 64)])
def test_a_convolution_in_float64(x: int, y: int, place: str) -> None:
    """M = float64(s_x s_w / s_y), rounded once; sums -3 (q + 5) of one weight.  0.3 / 0.1 is 3 in float32 only."""
    s_x, s_y, s_w = scale(x), scale(y), scale(640)
    net = nn.Conv2d(1, 1, 1, bias=False)
    nn.init.constant_(net.weight, -3 * s_w)
    real = torch.arange(-128.0, 128.0).add(5).mul(s_x).reshape(1, 1, 16, 16)
    multiplier = float64(Fraction(s_x) * Fraction(s_w) / Fraction(s_y))
    for rounding in ROUNDINGS:
        arithmetic = FloatMultiplier(rounding, place, dtype="float64")
        found = codes_of(target(arithmetic, s_x, s_y, -5, 9, s_w), net, real)
        wanted = []
        for q in found["input_1_codes"]:
            v = float64(-3 * (int(q) + 5) * multiplier)
            v, z = (float64(v + 9), 0) if place == "before" else (v, 9)
            wanted.append(clamp(rounded(v, rounding) + z, -128, 127))
        assert found["conv2d"] == wanted


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("division", [True, False])
def test_an_addition_in_float64(place: str, division: bool) -> None:
    """Both terms are exact; their sum, and its quotient or its product with 1 / s_y, are each rounded to float64."""
    s_x, s_y = scale(192), scale(64)
    x, y = (torch.arange(-128.0, 128.0).mul(s_x)[order] for order in (torch.arange(256), 37 * torch.arange(256) % 256))
    for rounding in ROUNDINGS:
        arithmetic = FloatKernel("float64", rounding, division, place, wide=True)
        found = codes_of(target(arithmetic, s_x, s_y, 0, 9), Sum(), x[:, None], y[:, None])
        wanted = []
        for a, b in zip(found["x_codes"], found["y_codes"], strict=True):
            v = float64(int(a) * Fraction(s_x) + int(b) * Fraction(s_x))
            v = float64(v / Fraction(s_y)) if division else float64(v * float64(1 / Fraction(s_y)))
            v, z = (float64(v + 9), 0) if place == "before" else (v, 9)
            wanted.append(clamp(rounded(v, rounding) + z, -128, 127))
        assert found["add"] == wanted


def test_without_wide_the_tensors_are_float32() -> None:
    """0.3 q is rounded to float32 before it is 3 times 0.1: with floor, some codes differ."""
    x = torch.arange(-42.0, 42.0).mul(scale(192))[:, None]
    plain, wide = (
        codes_of(target(FloatKernel("float64", "floor", wide=wide), scale(192), scale(64), 0, 0), Sum(), x, torch.zeros_like(x))
        for wide in (False, True)
    )
    assert plain["add"] != wide["add"]


def test_errors() -> None:
    with pytest.raises(SpecError) as raised:
        FloatMultiplier(zero_point="before", fma=True, dtype="float64")
    assert str(raised.value) == (
        "FloatMultiplier.dtype: found 'float64', wanted \"float32\" with fma. Leave out one of them: no known kernel fuses in "
        "float64."
    )
    for arithmetic in ({"dtype": "float32"}, {"dtype": "float64", "function": Mlas()}, {"dtype": "float16"}):
        with pytest.raises(SpecError) as raised:
            FloatKernel(**arithmetic, wide=True)  # type: ignore[arg-type]
        assert str(raised.value) == (
            'FloatKernel.wide: found True, wanted dtype "float64", and neither function nor fma. Give FloatKernel("float64", '
            "wide=True)."
        )
    double = FloatMultiplier(dtype="float64")
    for net, kind in ((nn.AdaptiveAvgPool2d(1), "global_avg_pool"), (nn.PReLU(), "prelu")):
        made = target(double, 0.5, 0.5, 0, 0)
        with pytest.raises(EmulationError) as refused:
            codes_of(made, net, torch.ones(1, 2, 3, 3))
        wanted = (
            "FloatMultiplier(zero_point='after') in float32"
            if kind == "prelu"
            else "FloatMultiplier() or FloatKernel('float64', wide=True)"
        )
        text = (
            f"found FloatMultiplier(dtype='float64') for an op of kind '{kind}', wanted {wanted}. Bind another arithmetic in "
        )
        assert text + "the target's kernels." in str(refused.value)
