"""Every rounding mode of small floats against the equation in rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from qfunc.numerics.minifloat import nearest
from qfunc.specs import Float
from qfunc.specs.formats import E4M3FN
from qfunc.testing import oracle, strategies

MODES = [*(m for m in oracle.MODES if not m.endswith("_on_index")), "stochastic"]
NAN, INF = math.nan, math.inf


def bits(values: Any) -> np.ndarray[Any, Any]:
    """Bit patterns of float32, all NaN alike: -0 differs from 0."""
    real = np.asarray(values, np.float32)
    return np.where(np.isnan(real), np.int64(-1), real.view(np.int32).astype(np.int64))


def exact(x: float, fmt: Float, mode: str, noise: float) -> float:
    """The equation in rational arithmetic, for one number; float64, for it holds what the format holds."""
    bias = fmt.bias if fmt.bias is not None else 2 ** (fmt.exponent - 1) - 1
    highest = 2**fmt.exponent - 1 - bias
    free = not fmt.signed and fmt.mantissa == 0
    top = Fraction(fmt.max) if fmt.max is not None else (2 - Fraction(1, 2**fmt.mantissa)) * Fraction(2) ** (highest - 1)
    infinite = fmt.negative_zero and fmt.mantissa > 0 and top < Fraction(2) ** highest
    nan = not fmt.negative_zero or top != (2 - Fraction(1, 2**fmt.mantissa)) * Fraction(2) ** highest
    saturate = fmt.saturate or not nan
    if math.isnan(x):
        return NAN
    if not fmt.signed and (x < 0 or (x == 0 and free)):
        return (2.0**-bias if free else 0.0) if saturate else NAN
    if math.isinf(x):
        value: Fraction | float = x
    else:
        real, lowest = Fraction(x), -bias if free else 1 - bias
        exponent = lowest
        while Fraction(2) ** (exponent + 1) <= abs(real):
            exponent += 1
        unit = Fraction(2) ** (exponent - fmt.mantissa)
        whole = math.floor(real / unit + Fraction(noise)) if mode == "stochastic" else oracle.rounded(real / unit, mode)
        value = whole * unit
        value = max(value, Fraction(2) ** lowest) if free else value
    if abs(value) > top:
        beyond = float(top) if saturate else INF if infinite else NAN
        return math.copysign(beyond, x)
    return math.copysign(float(value), x) if fmt.negative_zero and fmt.signed else float(value) + 0.0


@pytest.mark.thorough
@settings(max_examples=600)
@given(st.data())
def test_every_mode_equals_the_rational_equation(data: st.DataObject) -> None:
    """Any format of up to 12 bits, saturating or not; ties, neighbours, extremes; noise on the grid of float32's rand."""
    fmt = data.draw(strategies.float_formats(max_bits=12))
    mode = data.draw(st.sampled_from(MODES))
    x = data.draw(st.lists(strategies.floats_near_ties(fmt=fmt), min_size=6, max_size=12))
    noise = [k / 2**24 for k in data.draw(st.lists(st.integers(0, 2**24 - 1), min_size=len(x), max_size=len(x)))]

    found = nearest(torch.tensor(x), fmt, mode, torch.tensor(noise))

    wanted = [exact(v, fmt, mode, u) for v, u in zip(np.float32(x).tolist(), noise, strict=True)]
    with np.errstate(over="ignore"):  # a value of the format may lie beyond float32
        np.testing.assert_array_equal(bits(found), bits(wanted))


@pytest.mark.parametrize("mode", MODES)
def test_float64_is_rounded_once(mode: str) -> None:
    """Ties and numbers 2^-50 beside them, where a cast through float32 would round twice."""
    ties = [k / 16 * 2.0**e for k in range(16, 32) for e in (-9, 0, 5)]
    x = [s * t * (1 + d) for t in ties for d in (0.0, 2.0**-50, -(2.0**-50)) for s in (1, -1)]

    found = nearest(torch.tensor(x, dtype=torch.float64), E4M3FN, mode, torch.full((len(x),), 0.25, dtype=torch.float64))

    assert found.dtype == torch.float64
    assert found.tolist() == [exact(v, E4M3FN, mode, 0.25) for v in x]


@given(st.data())
def test_rounding_is_idempotent_and_monotone(data: st.DataObject) -> None:
    """What is rounded stays, in every mode; and x <= y gives R(x) <= R(y) with the same noise."""
    fmt = evolve(data.draw(strategies.float_formats()), saturate=True)
    mode = data.draw(st.sampled_from(MODES))
    x = torch.tensor(sorted(data.draw(st.lists(strategies.floats_near_ties(fmt=fmt), min_size=2))))
    noise = torch.full_like(x, data.draw(st.integers(0, 255)) / 256)

    once = nearest(x, fmt, mode, noise)

    assert (once[1:] >= once[:-1]).all()
    finite = once[torch.isfinite(once)]  # a value of the format may lie beyond float32
    np.testing.assert_array_equal(bits(nearest(finite, fmt, mode, noise[: len(finite)])), bits(finite))
