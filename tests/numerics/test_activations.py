"""Curves and means in fixed point, each number against Python's integers and the formula of its docstring."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from math import floor

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from qfunc.numerics.kernels import activations as curves
from qfunc.numerics.kernels.fixed_point import fixed_multiplier
from qfunc.numerics.kernels.integer import quantize_int32, softmax_float
from qfunc.numerics.kernels.resize import bilinear_codes
from qfunc.numerics.kernels.vector import dequantize_sum, quantize_lanes
from qfunc.testing.oracle import rounded

CODES = torch.arange(-128.0, 128.0)
DOUBLE = ["srdhm", "half_away"]
REAL = [0.5, 0.25, 0.3721, 1.75, 0.0123]


def _twice(x: int, real: float) -> int:
    # The doubled high half, half up, then the shift, half away from zero: gemmlowp's two steps.
    m, e = (int(v) for v in fixed_multiplier(torch.tensor(real, dtype=torch.float64)))
    high = floor(Fraction((x << max(0, 31 - e)) * m, 2**31) + Fraction(1, 2))
    return int(rounded(Fraction(high, 2 ** max(0, e - 31)), "half_away"))


def _clamped(values, zero: int = 0) -> list[float]:
    return [float(min(max(v + zero, -128), 127)) for v in values]


@pytest.mark.parametrize("real", REAL)
def test_each_side_of_zero_has_its_multiplier(real):
    x = CODES - 7
    m, e = zip(*(fixed_multiplier(torch.tensor(v, dtype=torch.float64)) for v in (real, real / 3)), strict=True)
    wanted = _clamped((_twice(int(v), real if v >= 0 else real / 3) for v in x), -5)
    assert curves.two_slopes(x, x, m, e, DOUBLE, -5, -128, 127).tolist() == wanted


def test_a_fixed_number_of_bits():
    x = CODES + 20
    wanted = _clamped(floor(Fraction(int(v) * (77 if v >= 0 else 9), 256) + Fraction(1, 2)) for v in x)
    assert curves.fixed_bits(x, (77, 9), 8, "half_up", 0, -128, 127).tolist() == wanted


@pytest.mark.parametrize("real", REAL)
def test_the_multiplier_of_a_mean_is_divided_by_the_count(real):
    choose = random.Random(0)
    x = torch.tensor([[[float(choose.randint(-128, 127)) for _ in range(7)] for _ in range(9)] for _ in range(40)])
    m, e = (int(v) for v in fixed_multiplier(torch.tensor(real, dtype=torch.float64)))
    m, e = (m << 5) // 63, e + 5
    sums = [int(row.sum()) - 63 * 11 for row in x]
    high = [floor(Fraction((s << max(0, 31 - e)) * m, 2**31) + Fraction(1, 2)) for s in sums]
    wanted = _clamped((int(rounded(Fraction(h, 2 ** max(0, e - 31)), "half_away")) for h in high), 3)
    assert curves.mean_fixed(x, 11, [1, 2], False, real, DOUBLE, 3, -128, 127).tolist() == wanted


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize(("pads", "ceil"), [(True, False), (False, False), (False, True)])
def test_codes_are_averaged_with_their_zero_point(pads, ceil, centred):
    choose = random.Random(1)
    image = [[choose.randint(-128, 127) for _ in range(6)] for _ in range(5)]
    x = torch.tensor(image, dtype=torch.float32)[None, None]
    found = curves.average_inside(x, (3, 2), (2, 2), (1, 1), ceil, pads, 9, "half_away", -128, 127, centred)[0, 0]
    for row, column in torch.cartesian_prod(torch.arange(found.shape[0]), torch.arange(found.shape[1])).tolist():
        places = [(2 * row - 1 + i, 2 * column - 1 + j) for i in range(3) for j in range(2)]
        inside = [image[i][j] for i, j in places if 0 <= i < 5 and 0 <= j < 6]
        total, count = sum(inside) + (9 * (6 - len(inside)) if pads else 0), 6 if pads else len(inside)
        zero = 9 if centred else 0
        assert found[row, column] == float(rounded(Fraction(total, count) - zero, "half_away") + zero)


def test_hard_swish_is_within_one_code_and_exact_at_its_ends():
    x = (CODES - 3) * 0.0625
    real = torch.nn.functional.hardswish(x.double()) / 0.05
    found = curves.hard_swish16(CODES, 3, 0.0625, 0.05, 0, -128, 127)
    assert (found - real.clamp(-128, 127)).abs().max() <= 1.01  # 16 bits: h and r are each rounded, their product is cut off
    assert found[(x <= -3) | (x == 0)].abs().max() == 0
    assert found[-1] == 127


def _hard_swish(x: int, scale_in: float, scale: float) -> int:
    # TFLite reference_ops HardSwish, one value in plain integers: every shift and product by a rational that is rounded.
    def pair(real: float) -> tuple[int, int]:
        fraction, e = math.frexp(real)
        return min((int(rounded(Fraction(fraction) * 2**31, "half_away")) + 2**15) >> 16, 2**15 - 1), e

    def cut(v: int) -> int:
        return max(-(2**15), min(v, 2**15 - 1))

    def high(a: int, b: int) -> int:
        return cut(int(rounded(Fraction(a * b, 2**15), "half_up")))

    (m_y, e_y), (m_6, e_6) = (pair(float(np.float32(scale_in / 128) / np.float32(s))) for s in (scale, 3 / 32768))
    height = high(128 * x, m_y)
    share = (
        cut(cut(high(cut(128 * x << (e_6 - 1)), m_6)) << 1)
        if e_6 > 0
        else (int(rounded(Fraction(high(128 * x, m_6)) / 2**-e_6, "half_away")))
    )
    share = (share + 2**15) >> 1
    return int(rounded(Fraction(math.trunc(Fraction(share * height, 2**15))) * Fraction(2) ** e_y, "half_away"))


@pytest.mark.parametrize(("scale_in", "scale"), [
    (0.0625, 0.046875), (0.03125, 0.0234375), (0.00390625, 0.001953125),
    (float(np.float32(0.0371)), float(np.float32(0.03695002570748329))),  # of 16 bits otherwise than the quotient of doubles
])  # fmt: skip
def test_hard_swish_is_the_integers_of_its_source(scale_in: float, scale: float):
    found = curves.hard_swish16(CODES, 3, scale_in, scale, 0, -(2**15), 2**15 - 1)
    assert found.tolist() == [_hard_swish(int(q) - 3, scale_in, scale) for q in CODES]


def test_integer_weights_of_neighbours():
    # 2 -> 4 by half-pixel centres: weights 1/4 and 3/4, and sums half way between codes.
    x = torch.tensor([[[[-3.0, -1.0], [4.0, 6.0]]]])
    across = [
        [Fraction(-3), Fraction(-5, 2), Fraction(-3, 2), Fraction(-1)],
        [Fraction(4), Fraction(9, 2), Fraction(11, 2), Fraction(6)],
    ]
    whole = [
        [(3 - k) * a / 3 + k * b / 3 for a, b in zip(*across, strict=True)] for k in (0, Fraction(3, 4), Fraction(9, 4), 3)
    ]
    for positions, bits, rounding in (("integer", 10, "half_away"), ("float", 11, "half_up"), ("rational", 11, "half_up")):
        wanted = [[float(rounded(v, rounding)) for v in row] for row in whole]
        assert bilinear_codes(x, (4, 4), False, positions, bits)[0, 0].tolist() == wanted


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("size", [(10, 4), (5, 3), (3, 13), (1, 1), (2, 16)])
def test_rational_weights_are_those_of_the_places(size, corners):
    """Places by fractions, each axis by itself; exact ties may go to either side, by the last of the multiplier's 31 bits."""
    choose = random.Random(5)
    image = [[choose.randint(-128, 127) for _ in range(4)] for _ in range(5)]

    def between(have: int, want: int, i: int) -> tuple[int, int, Fraction]:
        if corners and want > 1:
            at = Fraction(i * (have - 1), want - 1)
        else:
            at = Fraction(2 * i + 1, 2) * Fraction(have, want) - Fraction(1, 2)
        at = min(max(at, Fraction(0)), Fraction(have - 1))
        return floor(at), min(floor(at) + 1, have - 1), at - floor(at)

    found = bilinear_codes(torch.tensor(image, dtype=torch.float32)[None, None], size, corners, "rational", 11)[0, 0]
    for row, column in torch.cartesian_prod(torch.arange(size[0]), torch.arange(size[1])).tolist():
        (top, bottom, y), (left, right, x) = between(5, size[0], row), between(4, size[1], column)
        high, low = (image[r][left] * (1 - x) + image[r][right] * x for r in (top, bottom))
        exact = high * (1 - y) + low * y
        either = {float(rounded(exact, "half_up"))}
        if (exact * 2).denominator == 1:  # the multiplier of a sum that is no power of two may lie below 1 / sum
            either.add(float(rounded(exact, "half_down")))
        assert float(found[row, column]) in either


def test_whole_runs_are_decoded_by_a_sum():
    q, s = torch.arange(-5.0, 6.0), torch.tensor(0.0317)
    summed, centred = q * s + s * -37.0, (q - 37) * s
    assert not torch.equal(summed[:8], centred[:8])
    assert torch.equal(dequantize_sum(q, float(s), 37, 8), torch.cat([summed[:8], centred[8:]]))


def as_int32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


@given(
    st.floats(allow_nan=False, allow_infinity=False, width=32) | st.integers(-(2**33), 2**33).map(float), st.integers(-128, 127)
)
@example(-(2.0**31), -1)
@example(2.0**31, -1)
def test_quotients_beyond_32_bits_are_the_least_integer_and_the_sum_wraps(x: float, zero: int):
    steps = round(float(torch.tensor(x)))  # half to even
    inside = -(2**31) <= steps < 2**31
    wanted = min(max(as_int32((steps if inside else -(2**31)) + zero), -128), 127)
    assert quantize_int32(torch.tensor([x]), 1.0, zero, -128, 127, "half_even", True).tolist() == [wanted]


def test_softmax_rounds_half_up():
    # Two equal exponents share 256 codes; 512 of them have half a code each.
    found = softmax_float(torch.zeros(1, 512), -1, 0.1, 1 / 256, -128, -128, 127)
    assert found.unique().tolist() == [-127.0]


def test_what_fills_no_run_is_rounded_from_doubles():
    # 21.5 in float32 arithmetic, in doubles just below; and ties, which each way has its own for.
    s = 0.01867452636361122
    x = torch.tensor([21.5 * s] * 9 + [0.5 * s, -0.5 * s]).float()
    assert float(x[0]) / s < 21.5
    found = quantize_lanes(x, s, 3, -128, 127, "half_even", False, "half_away", 8)
    assert found.tolist() == [25.0] * 8 + [24.0, 4.0, 2.0]
    assert quantize_lanes(torch.tensor([500.0, -500.0]), 1.0, 0, -128, 127, "half_even", True, "trunc", 1).tolist() == [
        127,
        -128,
    ]
