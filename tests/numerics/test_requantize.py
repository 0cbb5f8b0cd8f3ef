"""Output stages of integer kernels against the rational oracle, step by float32 step."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qfunc.numerics.kernels import addition, integer
from qfunc.testing import integer_oracle as exact
from qfunc.testing import oracle, strategies

SCALES = strategies.scales(tiny=False, huge=False)
ZEROS = strategies.zero_points(low=0, high=255)


@settings(max_examples=300)
@given(
    st.lists(st.one_of(st.integers(-1000, 1000), st.integers(-(2**31), 2**31)), min_size=1, max_size=20),
    SCALES, SCALES, SCALES, ZEROS, st.sampled_from(oracle.MODES), st.sampled_from(("after", "before")),
)  # fmt: skip
def test_requantize_equals_the_oracle(
    accs: list[int], s_x: float, s_w: float, s_y: float, zero: int, mode: str, place: str
) -> None:
    """float32(acc) * M, each step rounded; accumulators beyond 2^24; zero point before or after the rounding.

    On the level index float32 subtracts the index's origin and may round onto a tie: there, within one code.
    """
    m = exact.multiplier(s_x, s_w, s_y)

    found = integer.requantize(torch.tensor(accs, dtype=torch.float64), torch.tensor(float(m)), zero, 0, 255, mode, place)

    expected = [exact.requantize(a, m, zero, 0, 255, mode, place) for a in accs]
    if mode.endswith("_on_index"):
        assert all(abs(f - e) <= 1 for f, e in zip(found.tolist(), expected, strict=True))
    else:
        assert found.tolist() == expected


def test_zero_point_before_and_after_rounding_differ_on_ties() -> None:
    """The two places are not the same hardware: an odd zero point moves every tie of half to even."""
    acc = torch.arange(-8.0, 8.0)
    before, after = (integer.requantize(acc, torch.tensor(0.5), 101, 0, 255, "half_even", p) for p in ("before", "after"))

    assert (before - after).abs().tolist() == [float(a % 2 != 0) for a in range(-8, 8)]


@settings(max_examples=60)
@given(st.data())
def test_sum_by_fused_multiply_adds_equals_the_oracle(data: st.DataObject) -> None:
    """Ratios on rounding ties and one ulp beside them, extreme zero points, random and extreme codes."""
    s = data.draw(SCALES)

    def near_tie() -> float:
        ratio = np.float32(s * data.draw(st.integers(0, 40).map(lambda k: 2 * k + 1)) / 2 ** data.draw(st.integers(1, 6)))
        return float(data.draw(st.sampled_from([ratio, *(np.nextafter(ratio, np.float32(t)) for t in (0, 9))])))

    s_a, s_b = near_tie(), data.draw(st.one_of(SCALES, st.just(0).map(lambda _: s / 2)))
    z_a, z_b, z = data.draw(ZEROS), data.draw(ZEROS), data.draw(ZEROS)
    codes = st.one_of(st.sampled_from((0, 1, 127, 128, 254, 255)), st.integers(0, 255))
    pairs = data.draw(st.lists(st.tuples(codes, codes), min_size=1, max_size=12))
    a, b = (torch.tensor(column, dtype=torch.float32) for column in zip(*pairs, strict=True))

    found = addition.add_codes(a, s_a, z_a, b, s_b, z_b, s, z, 0, 255, "half_even")

    assert found.tolist() == [exact.sum_fma(int(p), s_a, z_a, int(q), s_b, z_b, s, z, 0, 255) for p, q in pairs]


@pytest.mark.parametrize("low_bits", [0, 1, 5])
def test_sums_of_very_unequal_scales_keep_single_roundings(low_bits: int) -> None:
    """Ratios 2^24 apart, where a float64 sum would round before float32 does."""
    s_a, s_b = 2.0**-24 * (1 + low_bits * 2.0**-23), 1 + 2.0**-23
    a, b = (v.flatten().float() for v in torch.meshgrid(torch.arange(0, 256, 15), torch.arange(0, 256, 15), indexing="ij"))

    found = addition.add_codes(a, s_a, 255, b, s_b, 1, 2.0, 3, 0, 255, "half_even")

    pairs = zip(a.tolist(), b.tolist(), strict=True)
    assert found.tolist() == [exact.sum_fma(int(p), s_a, 255, int(q), s_b, 1, 2.0, 3, 0, 255) for p, q in pairs]
    assert not addition._float64_is_exact(s_a / 2, s_b / 2)
    assert addition._float64_is_exact(1.5, 0.01)


@pytest.mark.thorough
def test_sum_swaps_an_operand_that_is_constant_along_the_last_axis() -> None:
    """[1] + [3]: the runtime makes the broadcast operand the second; with these scales the order shows."""
    s_a, s_b = float(np.float32(0.7)), float(np.float32(1.3))
    a, b = torch.tensor([[37.0]]), torch.arange(256.0)[None]
    order = [(s_a, 3), (s_b, 250)]
    shown = 0
    for scale in np.linspace(0.5, 3.0, 30, dtype=np.float32).tolist():
        found = addition.add_codes(a, *order[0], b, *order[1], scale, 9, 0, 255, "half_even")
        back = addition.add_codes(b, *order[1], a, *order[0], scale, 9, 0, 255, "half_even")
        swapped = [exact.sum_fma(int(q), *order[1], 37, *order[0], scale, 9, 0, 255) for q in b[0].tolist()]
        straight = [exact.sum_fma(37, *order[0], int(q), *order[1], scale, 9, 0, 255) for q in b[0].tolist()]
        assert found[0].tolist() == back[0].tolist() == swapped
        shown += swapped != straight
    assert shown > 0


@pytest.mark.parametrize("division", [True, False])
@pytest.mark.parametrize("mode", oracle.MODES)
def test_quantize_codes_is_quantize(mode: str, division: bool) -> None:
    """With a power of two both divisions are exact, and the codes are the oracle's."""
    x = torch.arange(-70, 70) / 64

    found = integer.quantize_codes(x, 1 / 32, 5, 0, 31, mode, division)

    assert found.tolist() == [oracle.quantize(v, 1 / 32, 5, 0, 31, mode) for v in x.tolist()]


def test_dequantize_codes_rounds_the_product_once() -> None:
    """All 256 codes against the exact product."""
    codes, s = torch.arange(256.0), float(np.float32(0.1))

    found = integer.dequantize_codes(codes, s, 131)

    assert [Fraction(v) for v in found.tolist()] == [oracle.float32(oracle.dequantize(q, s, 131)) for q in range(256)]
