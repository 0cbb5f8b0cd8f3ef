"""From ranges to qparams, against the rational oracle."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qfunc.numerics import from_range
from qfunc.specs import Int, PerChannel, Scale, Scheme, ZeroPoint
from qfunc.specs.formats import E4M3FN
from qfunc.testing import oracle, strategies

RANGES = st.tuples(
    *[st.one_of(st.floats(width=32, allow_nan=False, allow_infinity=False), st.floats(-9, 9, width=32), st.just(0.0))] * 2
).map(sorted)
NEAREST = [m for m in oracle.MODES if not m.endswith("_on_index")]


@st.composite
def range_schemes(draw: st.DrawFn) -> Scheme:
    kind = draw(st.sampled_from(("symmetric", "affine", "value")))
    fmt = draw(strategies.int_formats(max_bits=16).filter(lambda f: kind != "symmetric" or f.qmin <= 0 <= f.qmax))
    scale: dict[str, Any] = {"power_of_two": draw(st.booleans()), "minimum_range": draw(st.sampled_from((0.0, 0.0, 1e-3, 2.0)))}
    if draw(st.integers(0, 3)) == 0:
        scale |= {"low": 2.0**-10, "high": 4.0}
    if kind == "symmetric":
        divisors = ["qmax", "half_range"] + ["-qmin"] * (fmt.qmin < 0)
        return Scheme(fmt, Scale(divisor=draw(st.sampled_from(divisors)), **scale))
    if kind == "affine":
        return Scheme(fmt, Scale(**scale), ZeroPoint(draw(st.sampled_from(NEAREST))))
    return Scheme(fmt, Scale(**scale), ZeroPoint(value=draw(strategies.zero_points(low=fmt.qmin, high=fmt.qmax))))


@settings(max_examples=600)
@given(RANGES, range_schemes())
def test_scale_and_zero_point_are_the_exact_ones_rounded_once(ends: list[float], scheme: Scheme) -> None:
    """Equal to the rational result, unless float64's own error (under 2^-50 relative) crosses a rounding boundary.

    Float64 makes at most three roundings of 2^-53 each before the scale is rounded to float32, and before
    the zero point is rounded to an integer.
    """
    low, high = ends
    fmt, rule, zero = scheme.format, scheme.scale, scheme.zero_point
    assert isinstance(fmt, Int)
    value = None if zero is None else zero.value
    exact = oracle.scale_of_range(
        low, high, fmt.qmin, fmt.qmax, symmetric=zero is None, divisor=rule.divisor, value=value,
        power_of_two=rule.power_of_two, smallest=rule.low, largest=rule.high, minimum_range=rule.minimum_range,
    )  # fmt: skip
    if exact >= 2**127 or abs(exact / Fraction(2) ** -126 - 1) < Fraction(1, 2**40):
        return  # beyond float32, or on the edge of "too small"

    found = from_range(torch.tensor(low), torch.tensor(high), scheme)

    scale = Fraction(found.scale.item())
    if scale != oracle.float32(exact):
        slack = exact / 2**50
        assert scale in (oracle.float32(exact - slack), oracle.float32(exact + slack))
    if zero is None or zero.value is not None:
        assert found.zero_point.item() == (value or 0)
        return
    expected = oracle.zero_of_range(low, scale, fmt.qmin, fmt.qmax, zero.rounding)
    if found.zero_point.item() != expected:
        real = fmt.qmin - min(Fraction(low), Fraction(0)) / scale
        assert oracle.step_distance(real, zero.rounding) <= (abs(real) + abs(fmt.qmin)) / 2**50


@pytest.mark.thorough
@given(st.integers(-120, 120), st.integers(-1, 1), st.integers(1, 127))
def test_powers_of_two_are_rounded_up_and_never_clip(exponent: int, ulps: int, qmax: int) -> None:
    """On, one float64 step below and one above a power of two: the result is the smallest one that holds the range."""
    scheme = Scheme(Int(8, low=-127), Scale(power_of_two=True))
    absmax = torch.tensor(127 * 2.0**exponent, dtype=torch.float64)
    absmax = absmax if ulps == 0 else torch.nextafter(absmax, absmax * (2 if ulps > 0 else 0.5))

    scale = from_range(-absmax, absmax / qmax, scheme).scale

    # absmax / 127 rounds in float64, which may swallow the step: then the result is as for 127 * 2^exponent.
    quotient = Fraction((absmax / 127).item())
    assert Fraction(scale.item()) == oracle.power_of_two_above(quotient)


@given(RANGES)
def test_an_affine_range_is_held_up_to_half_a_code(ends: list[float]) -> None:
    """Dequantized extremes reach beyond the range or miss it by half a step, and by float32's own rounding."""
    low, high = (max(min(v, 1e30), -1e30) for v in ends)
    scheme = Scheme(Int(8, signed=False), zero_point=ZeroPoint())
    scale, zero = from_range(torch.tensor(low), torch.tensor(high), scheme)[:2]
    s, z = Fraction(scale.item()), int(zero)

    # s carries 2^-24 of relative rounding, times at most 255 codes.
    slack = s * (Fraction(1, 2) + Fraction(255, 2**24))
    assert (0 - z) * s <= max(low, 0) + slack if low > 0 else (0 - z) * s <= Fraction(low) + slack
    assert (255 - z) * s >= min(Fraction(high), Fraction(10**30)) - slack


def test_per_channel_is_a_loop() -> None:
    """Every channel has the qparams of its own range."""
    low, high = torch.tensor([[-1.0], [0.3], [-7.0]]), torch.tensor([[2.0], [0.9], [-6.0]])
    scheme = Scheme(Int(5), Scale(PerChannel(0)), ZeroPoint())

    found = from_range(low, high, scheme)

    each = [
        from_range(a, b, Scheme(Int(5), zero_point=ZeroPoint())) for a, b in zip(low.flatten(), high.flatten(), strict=True)
    ]
    assert found.scale.flatten().tolist() == [q.scale.item() for q in each]
    assert found.zero_point.flatten().tolist() == [q.zero_point.item() for q in each]


@pytest.mark.parametrize("scheme", [Scheme(), Scheme(Int(8, signed=False), zero_point=ZeroPoint())])
def test_the_range_of_nothing_and_of_zero_has_scale_one(scheme: Scheme) -> None:
    """[0, 0], a subnormal range and the empty range +inf, -inf: a scale of 1, zero held."""
    for low, high in ((0.0, 0.0), (-1e-44, 1e-44), (float("inf"), -float("inf"))):
        found = from_range(torch.tensor(low), torch.tensor(high), scheme)
        assert found.scale.item() == 1.0
        assert found.zero_point.item() == 0.0


def test_scales_of_formats_without_integers_reach_their_largest_value() -> None:
    """s = absmax / 448 for E4M3FN: NVIDIA ModelOpt, amax / 448."""
    assert from_range(torch.tensor(-1.0), torch.tensor(0.5), Scheme(E4M3FN)).scale.item() == float(np.float32(1 / 448))
