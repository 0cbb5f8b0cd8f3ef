"""Rounding modes against the rational oracle."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qfunc.errors import SpecError
from qfunc.numerics import round_by
from qfunc.testing import oracle

NEAR = [float(np.nextafter(np.float32(h), np.float32(t))) for n in range(-4, 4) for h in (n, n + 0.5) for t in (-9, h, 9)]
HARD = [
    *NEAR,
    0.49999997,
    -0.49999997,
    2.0**-149,
    -(2.0**-149),
    2.0**23 - 0.5,
    2.0**22 + 0.5,
    -(2.0**23) + 0.5,
    2.0**24 + 2,
    2.0**100,
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", oracle.MODES)
def test_every_mode_is_exact_on_and_beside_its_ties(mode: str, dtype: torch.dtype) -> None:
    """Integers and halves from -4 to 4 and one ulp either side, 0.49999997, subnormals, the last ties of float32."""
    found = round_by(torch.tensor(HARD, dtype=dtype), mode)

    assert found.dtype == dtype
    assert [Fraction(v) for v in found.tolist()] == [Fraction(oracle.rounded(v, mode)) for v in HARD]


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1), st.sampled_from(oracle.MODES))
def test_every_mode_is_exact_on_any_float32(values: list[float], mode: str) -> None:
    """No float32 is too large or too small for a rounding mode."""
    found = round_by(torch.tensor(values), mode)

    assert [Fraction(v) for v in found.tolist()] == [Fraction(oracle.rounded(v, mode)) for v in values]


@pytest.mark.parametrize("mode", oracle.MODES)
def test_nan_and_infinities_pass_through(mode: str) -> None:
    """NaN stays NaN and infinities stay infinite, so that a later clamp can saturate them."""
    found = round_by(torch.tensor([float("nan"), float("inf"), -float("inf")]), mode)

    assert found[0].isnan()
    assert found[1:].tolist() == [float("inf"), -float("inf")]


@pytest.mark.parametrize("low", [-7, 0, 3])
def test_rounding_on_the_index_is_even_counted_from_low(low: int) -> None:
    """A tie goes to the code whose distance from the lowest code is even."""
    ties = torch.arange(-4, 5) + 0.5

    found = round_by(ties, "half_even_on_index", low)

    assert found.tolist() == [oracle.rounded(t, "half_even_on_index", low) for t in ties.tolist()]
    assert ((found - low) % 2 == 0).all()


def test_stochastic_rounding_is_floor_of_x_plus_noise() -> None:
    """Deterministic given the noise: x = 1.25 goes up for a quarter of evenly spaced noise."""
    noise = torch.arange(8) / 8

    found = round_by(torch.full((8,), 1.25), "stochastic", noise=noise)

    assert found.tolist() == [1.0] * 6 + [2.0] * 2


@pytest.mark.parametrize("mode", ["stochastic", "nearest", ""])
def test_unknown_modes_and_missing_noise_are_refused(mode: str) -> None:
    """The message says what is missing."""
    with pytest.raises(SpecError, match=f"^round_by: found '{mode}', wanted (one of half_even, |noise for a stochastic mode)"):
        round_by(torch.zeros(1), mode)
