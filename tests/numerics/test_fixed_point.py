"""Fixed-point multipliers, roundings of shifts, and the fused multiply-add, against integer arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qfunc.errors import SpecError
from qfunc.numerics.kernels import fixed_point, integer
from qfunc.testing import integer_oracle as exact
from qfunc.testing import oracle

SHIFTS = [m for m in oracle.MODES if not m.endswith("_on_index")]
FLOAT32 = st.floats(-(2.0**60), 2.0**60, width=32)
INT32 = st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-300, 300))


@given(
    st.one_of(st.floats(2.0**-40, 64.0), st.sampled_from([1 - 2.0**-33, 0.5, 1.0, 2.0**-32, 2.0**-33, 0.0])),
    st.sampled_from((7, 15, 31)),
)
def test_multipliers_follow_the_definition(real: float, bits: int) -> None:
    """m has `bits` bits, rounded half away; a mantissa that rounds up to 2^bits moves the exponent."""
    m, e = fixed_point.fixed_multiplier(torch.tensor(real, dtype=torch.float64), bits)

    assert (int(m), int(e)) == exact.fixed_multiplier(real, bits)
    assert m == 0 or 2 ** (bits - 1) <= m < 2**bits


@settings(max_examples=300)
@given(st.lists(st.integers(-(2**62), 2**62), min_size=1), st.integers(0, 62), st.sampled_from(SHIFTS), st.integers(-3, 3))
def test_shifts_round_exactly(values: list[int], shift: int, mode: str, beside: int) -> None:
    """Any int64 and shift, and values on and beside a tie of that very shift."""
    ties = [k * 2**shift + (2**shift >> 1) + beside for k in (-2, -1, 0, 1, 2)]
    given_values = values + [t for t in ties if abs(t) < 2**62]

    found = fixed_point.shift_right(torch.tensor(given_values), torch.tensor(shift), mode)

    assert found.tolist() == [exact.shift_right(v, shift, mode) for v in given_values]


def test_shifts_may_differ_between_elements() -> None:
    """A shift per channel broadcasts."""
    found = fixed_point.shift_right(torch.tensor([[5], [-5]]), torch.tensor([0, 1, 3]), "half_away")

    assert found.tolist() == [[5, 3, 1], [-5, -3, -1]]


@pytest.mark.parametrize("mode", ["stochastic", "half_even_on_index", "half_up_on_index", "nearest"])
def test_roundings_that_no_shift_has_are_refused(mode: str) -> None:
    """The message names the mode."""
    with pytest.raises(SpecError, match=f"^shift_right: found '{mode}', wanted a nearest mode, floor or trunc"):
        fixed_point.shift_right(torch.tensor([1]), torch.tensor(1), mode)


@pytest.mark.parametrize("real", [5.5, 18022.4, 4613734.4])
def test_an_int32_that_is_shifted_to_the_left_wraps_around(real: float) -> None:
    m, e = exact.fixed_multiplier(real)
    values = [-(2**31), 2**31 - 1, 2**24 + 1, -123456789, 99999, -7]
    with np.errstate(over="ignore"):
        shifted = (np.array(values, np.int32) << np.int32(31 - e)).tolist()

    found = fixed_point.scale_fixed(torch.tensor(values), torch.tensor(m), torch.tensor(e), ("srdhm", "half_up"))

    assert found.tolist() == [exact.scale_fixed(a, m, 31, ("srdhm", "half_up")) for a in shifted]


@settings(max_examples=300)
@given(st.lists(INT32, min_size=1), st.floats(2.0**-31, 0.999), st.sampled_from(SHIFTS), st.booleans())
def test_fixed_point_requantization_equals_gemmlowp(accs: list[int], real: float, mode: str, two_steps: bool) -> None:
    """SRDHM by its definition and the rounding shift, or both at once; int32 accumulators, extremes included."""
    steps = ("srdhm", mode) if two_steps else (mode,)
    m, e = exact.fixed_multiplier(real)
    values = [*accs, -(2**31), 2**31 - 1, 0, 1, -1]

    found = fixed_point.scale_fixed(torch.tensor(values), torch.tensor(m), torch.tensor(e), steps)

    assert found.tolist() == [exact.scale_fixed(a, m, e, steps) for a in values]


def test_multipliers_above_one_shift_left_first() -> None:
    """M = 5.5: the accumulator goes left by 3 before the high multiply."""
    m, e = exact.fixed_multiplier(5.5)
    values = list(range(-50, 50))

    found = fixed_point.scale_fixed(torch.tensor(values), torch.tensor(m), torch.tensor(e), ("srdhm", "half_away"))

    assert e < 31
    assert found.tolist() == [exact.scale_fixed(a, m, e, ("srdhm", "half_away")) for a in values]
    # SRDHM breaks ties of negative products upward, so R is half up here, not half away.
    assert found.tolist() == [oracle.rounded(Fraction(11, 2) * a, "half_up") for a in values]


@given(FLOAT32, FLOAT32, FLOAT32)
def test_fma_rounds_once(a: float, b: float, c: float) -> None:
    """Any three float32, subnormal results included."""
    found = integer.fma(*(torch.tensor(v) for v in (a, b, c)))

    assert Fraction(found.item()) == exact.fma(a, b, c)


def test_fma_where_float64_alone_rounds_twice() -> None:
    """Sums that float64 rounds onto a tie of float32: a plain float64 expression errs on each, fma on none."""
    # (1 + i/2^12)(1 + j/2^12) with i, j odd is a tie of float32 in [1, 2); c is too small for float64 to see.
    odd, tails = range(1, 40, 2), (2.0**-60, -(2.0**-60), 2.0**-80)
    cases = [(s * (1 + i / 2**12), 1 + j / 2**12, c) for i in odd for j in odd for c in tails for s in (1, -1)]
    a, b, c = (torch.tensor(column) for column in zip(*cases, strict=True))
    plain = (a.double() * b.double() + c.double()).float()

    found = integer.fma(a, b, c)

    expected = [float(exact.fma(*case)) for case in cases]
    assert found.tolist() == expected
    assert int((plain != torch.tensor(expected)).sum()) == len(cases) // 2


def test_fma_keeps_infinities_and_nan() -> None:
    """IEEE 754: inf * 1 + 1 = inf, inf * 0 is NaN, and overflow is infinite."""
    inf = float("inf")
    a, b, c = (
        torch.tensor([inf, inf, 1.0, 3e38, 1.0]),
        torch.tensor([1.0, 0.0, 1.0, 3e38, 1.0]),
        torch.tensor([1.0, 1.0, -inf, 0.0, inf]),
    )

    found = integer.fma(a, b, c)

    assert found[[0, 2, 3, 4]].tolist() == [inf, -inf, inf, inf]
    assert found[1].isnan()
