"""The scales that hardware takes, against exact rationals and the formulas of their sources."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qfunc.errors import SpecError
from qfunc.numerics import from_range
from qfunc.numerics.qparams import of_tensor, qparams_shape
from qfunc.numerics.scales import nearest_scale
from qfunc.specs import BFLOAT16, FLOAT16, Float, Int, PerBlock, PerChannel, PerTensor, PerToken, Scale, Scheme, ZeroPoint
from qfunc.specs.formats import E2M1, E2M3, E4M3FN, E5M2, E8M0, NVFP4
from qfunc.testing import oracle

POSITIVE = st.floats(2.0**-100, 2.0**100, width=32)


def power(x: Fraction, rounding: str) -> Fraction:
    """2^k with k = ceil, floor or nearest of log2 x; nearest by x^2 against 2^(2k+1), where log2 is irrational."""
    above = oracle.power_of_two_above(x)
    if rounding == "ceil" or above == x:
        return above
    return above / 2 if rounding == "floor" or x * x < above * above / 2 else above


def held(scale: float, rule: Scale) -> Fraction:
    return Fraction(nearest_scale(torch.tensor(scale, dtype=torch.float64), Scheme(scale=rule))[0].item())


@pytest.mark.parametrize("rounding", ["ceil", "floor", "half_even"])
@given(st.integers(-120, 120), st.sampled_from((1.0, 2**0.5, 1.5, 1.999)), st.integers(-2, 2))
def test_powers_of_two_are_rounded_exactly(rounding: str, exponent: int, fraction: float, ulps: int) -> None:
    """On powers, on float64's root of two, and a few float64 beside: the rational comparison; E8M0 alike."""
    x = fraction * 2.0**exponent
    for _ in range(abs(ulps)):
        x = math.nextafter(x, math.copysign(math.inf, ulps))

    wanted = power(Fraction(x), rounding)

    assert held(x, Scale(power_of_two=True, rounding=rounding)) == wanted
    assert held(x, Scale(format=E8M0, rounding=rounding)) == wanted


@pytest.mark.parametrize(
    ("fmt", "dtype"),
    [(E4M3FN, ml_dtypes.float8_e4m3fn), (E5M2, ml_dtypes.float8_e5m2), (FLOAT16, np.float16), (BFLOAT16, ml_dtypes.bfloat16)],
)
@given(st.one_of(POSITIVE, st.floats(2.0**-10, 500, width=32), st.sampled_from((464.0, 61440.0, 65520.0, 2.0**-10, 2.0**-127))))
def test_a_scale_is_rounded_to_its_format_and_is_never_zero_nor_infinite(fmt: Float, dtype: Any, x: float) -> None:
    """Half to even by ml_dtypes; between the smallest subnormal and the largest value; 1 below 2^-126."""
    top, least = float(ml_dtypes.finfo(dtype).max), float(ml_dtypes.finfo(dtype).smallest_subnormal)
    x = x if x >= 2.0**-126 else 1.0

    found = held(x, Scale(format=fmt))

    assert found == Fraction(float(np.float32(min(max(x, least), top)).astype(dtype)))


@given(POSITIVE, st.sampled_from(("ceil", "floor", "half_even")))
def test_bounds_hold_after_the_rounding(x: float, rounding: str) -> None:
    """low <= s <= high; with a format the nearest values of the bounds."""
    assert 0.125 <= held(x, Scale(power_of_two=True, rounding=rounding, low=0.125, high=8.0)) <= 8
    assert Fraction(7, 64) <= held(x, Scale(format=E4M3FN, low=0.11, high=300.0)) <= 288
    assert 2.0**-9 <= held(x, Scale(format=E4M3FN, power_of_two=True, rounding=rounding)) <= 256


@pytest.mark.parametrize("fmt", [E8M0, E4M3FN, FLOAT16, Float(8, 23)])
def test_zero_tiny_nan_and_infinite_scales(fmt: Float) -> None:
    """0 and 2^-130 are 1, or E8M0's smallest; NaN is seen; infinity becomes the largest value of a small format."""
    found = nearest_scale(torch.tensor([0.0, 2.0**-130, math.nan, math.inf]), Scheme(scale=Scale(format=fmt)))[0]

    assert found[:2].tolist() == ([2.0**-127] * 2 if fmt == E8M0 else [1.0, 1.0])
    assert found[2].isnan()
    assert found[3].item() == {E8M0: 2.0**127, E4M3FN: 448.0, FLOAT16: 65504.0}.get(fmt, math.inf)


@pytest.mark.parametrize(
    ("fmt", "divisor", "d"),
    [
        (Int(8), "qmax", 127.0),
        (Int(8), "half_range", 127.5),
        (Int(8), "-qmin", 128.0),
        (Int(8), "emax", 64.0),
        (Int(4), "-qmin", 8.0),
        (Int(5, low=-11, high=13), "half_range", 12.0),
        (E4M3FN, "qmax", 448.0),
        (E4M3FN, "emax", 256.0),
        (E5M2, "emax", 2.0**15),
        (Float(3, 2, max=28.0), "emax", 16.0),
        (Float(2, 3, max=7.5), "emax", 4.0),
        (E2M1, "emax", 4.0),
        (E2M1, "emax_rounded", 3.5),
        (E2M3, "emax_rounded", 3.875),
        (E5M2, "emax_rounded", 2.0**15 * 0.9375),
        (E2M1, "qmax", 6.0),
    ],
)
@given(st.floats(2.0**-60, 2.0**60, width=32))
def test_every_divisor_divides_the_extreme(fmt: Any, divisor: str, d: float, extreme: float) -> None:
    """s = absmax / d rounded once to float32, from either end of the range; OCP MX table 1 gives emax."""
    scheme = Scheme(fmt, Scale(divisor=divisor))
    exact = Fraction(extreme) / Fraction(d)

    for low, high in ((-extreme, extreme / 3), (-extreme / 3, extreme)):
        found = from_range(torch.tensor(low), torch.tensor(high), scheme)
        assert Fraction(found.scale.item()) == oracle.float32(exact)
        assert found.zero_point.item() == 0.0
        assert found.outer is None


@given(st.floats(2.0**-60, 2.0**60, width=32), st.floats(0, 0.99))
def test_a_signed_scale_sends_the_extreme_to_qmin(extreme: float, other: float) -> None:
    """GGUF Q4_0 and MatMulNBits: d = (signed extreme) / -8, so that a positive extreme gives a negative scale."""
    scheme = Scheme(Int(4), Scale(divisor="-qmin", signed=True))

    for low, high, signed in ((-extreme, extreme * other, -extreme), (-extreme * other, extreme, extreme)):
        assert from_range(torch.tensor(low), torch.tensor(high), scheme).scale.item() == signed / -8


@given(st.floats(-8, 0, width=32), st.floats(0, 8, width=32))
def test_zero_points_are_nudged_as_gemmlowp_and_nncf_do(low: float, high: float) -> None:
    """ "nearest" takes the bound with the smaller error; "outward" then grows the scale until both bounds are held."""
    fmt, ends = Int(8, signed=False), (torch.tensor(low), torch.tensor(high))
    if high - low < 1e-3:
        return
    usual, nearest, outward = (
        from_range(*ends, Scheme(fmt, zero_point=ZeroPoint("half_away", nudge=n))) for n in ("low", "nearest", "outward")
    )
    scale = Fraction(usual.scale.item())
    from_low, from_high = -Fraction(low) / scale, 255 - Fraction(high) / scale
    smaller = abs(Fraction(low)) / scale < 255 + abs(Fraction(high)) / scale

    def whole(real: Fraction) -> set[int]:  # float64 may fall on either side of a tie that is 2^-40 near
        return {min(max(oracle.rounded(real + e, "half_away"), 0), 255) for e in (Fraction(1, 2**40), -Fraction(1, 2**40))}

    assert int(usual.zero_point) in whole(from_low)
    assert int(nearest.zero_point) in whole(from_low if smaller else from_high)
    assert nearest.scale == usual.scale
    z, s = int(outward.zero_point), Fraction(outward.scale.item())
    assert z == int(usual.zero_point)
    slack = s * 255 / 2**24  # the scale is rounded to float32 once
    assert (0 - z) * s <= Fraction(low) + slack or z == 0
    assert (255 - z) * s >= Fraction(high) - slack or z == 255
    assert s >= min(-Fraction(low) / z if z else s, Fraction(high) / (255 - z) if z < 255 else s) - slack


@pytest.mark.parametrize("shape", [(6, 64), (4, 1, 32), (0, 32), (3, 0)])
@pytest.mark.parametrize(
    "within", [Scale(), Scale(PerChannel(0)), Scale(PerToken()), Scale(power_of_two=True), Scale(format=FLOAT16)]
)
def test_two_levels_follow_the_formula(within: Scale, shape: tuple[int, ...]) -> None:
    """s2 = max(absmax) / (6 * 448) of the tensor, channel or token; s1 = E4M3(absmax / (6 s2)), 1 for zeros; by a loop."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2)) * torch.logspace(-3, 3, shape[-1])
    x[..., 16:32] = 0
    scheme = Scheme(E2M1, Scale(PerBlock(-1, 16), format=E4M3FN, within=within))

    scale, zero, outer = of_tensor(x, scheme)[:3]

    assert scale.shape == qparams_shape(scheme, tuple(x.shape))
    assert outer is not None
    assert not zero.any()
    absmax = x.abs().unflatten(-1, (-1, 16)).amax(-1).double() if x.numel() else torch.zeros(scale.shape)
    for place in np.ndindex(*absmax.shape):
        group = {PerTensor: absmax, PerChannel: absmax[place[0]], PerToken: absmax[place[:-1]]}[type(within.shared)]
        s2 = Fraction(group.max().item()) / (6 * 448)
        if within.format == FLOAT16:
            s2 = Fraction(float(np.float16(float(s2))))
        s2 = power(s2, "ceil") if within.power_of_two else oracle.float32(s2)
        at = outer.expand(absmax.shape)[place].item()
        assert Fraction(at) == s2
        s1 = np.float64(Fraction(absmax[place].item()) / 6 / s2)
        s1 = max(float(np.float32(min(s1, 448.0)).astype(ml_dtypes.float8_e4m3fn)), 2.0**-9) if absmax[place] else 1.0
        assert scale[place].item() == s1


def test_an_outer_scale_shared_by_blocks_is_refused() -> None:
    """There are two levels, not three kinds of blocks."""
    scheme = Scheme(E2M1, Scale(PerBlock(-1, 16), format=E4M3FN, within=Scale(PerBlock(-1, 64))))
    with pytest.raises(SpecError) as error:
        nearest_scale(torch.ones(2, 4), scheme)
    assert str(error.value) == (
        "Scale.within: found PerBlock(-1, size=64), wanted PerTensor(), PerChannel(axis) or PerToken(). "
        "Give the outer scale one of these granularities."
    )


def test_the_outer_scale_of_zeros_and_extremes_is_usable() -> None:
    """A tensor of zeros, of float32's largest and of its smallest normal number: positive finite scales."""
    for value in (0.0, 3.4e38, 2.0**-126, 1e-45):
        scale, _, outer = of_tensor(torch.full((2, 32), value), NVFP4)[:3]
        assert outer is not None
        assert (scale > 0).all()
        assert torch.isfinite(scale * outer).all()
        assert (scale * outer > 0).all()


def test_scales_compile_whole_and_map() -> None:
    """torch.compile without graph breaks, and vmap, over every kind of rule."""
    rules = (Scale(format=E8M0, rounding="half_even"), Scale(format=E4M3FN, low=0.01), Scale(divisor="-qmin", signed=True))
    x = torch.tensor([0.3, 0.0, 7.7, 1e9])
    for rule in rules:
        scheme = Scheme(Int(4), rule)

        def run(x: torch.Tensor, scheme: Scheme = scheme) -> torch.Tensor:
            return from_range(-x, x * 2, scheme).scale

        torch.compiler.reset()
        assert torch.equal(torch.compile(run, fullgraph=True, backend="aot_eager")(x), run(x))
        assert torch.equal(torch.func.vmap(run)(x), run(x))
