"""Softmax in fixed point, each number against Python's integers, and near the real one."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from qfunc.numerics.kernels.fixed_rows import softmax_fixed
from qfunc.testing.oracle import rounded


def _high(a: int, b: int) -> int:
    # gemmlowp's SaturatingRoundingDoublingHighMul: half up (its nudge, cut off towards 0).
    return math.floor(Fraction(a * b, 2**31) + Fraction(1, 2))


def _shifted(x: int, bits: int) -> int:
    return int(rounded(Fraction(x, 2**bits), "half_away"))


def _exponential(d: int, scale: float) -> int:
    # exp(d s) times 2^31: gemmlowp's exp_on_negative_values on a number with 26 bits behind the point.
    real = min(scale * 2.0**26, 2.0**31 - 1)
    fraction, left = math.frexp(real)
    if d < -((31 << 26) >> left):
        return 0
    a = _high(d << left, int(rounded(Fraction(fraction) * 2**31, "half_away")))
    if a == 0:
        return 2**31 - 1
    rest = a % 2**24 - 2**24
    x = (rest << 5) + 2**28
    x2 = _high(x, x)
    inner = _high(_shifted(_high(x2, x2), 2) + _high(x2, x), round(Fraction(2**31, 3)))
    eighth = round(math.exp(-1 / 8) * 2**31)
    value = eighth + _high(eighth, x + _shifted(inner + x2, 1))
    for k in range(-2, 5):
        if (rest - a) >> (26 + k) & 1:
            value = _high(value, round(math.exp(-(2.0**k)) * 2**31))
    return value


def _softmax(row: list[int], scale: float) -> list[int]:
    e = [_exponential(q - max(row), scale) for q in row]
    total = sum(_shifted(v, 12) for v in e)
    length = total.bit_length()
    half = ((total << (32 - length)) - 2**31 + 2**31) >> 1
    x = round(Fraction(48, 17) * 2**29) + _high(half, round(Fraction(-32, 17) * 2**29))
    for _ in range(3):
        x += min(_high(x, 2**29 - _high(half, x)) << 2, 2**31 - 1)
    unit = min(x << 1, 2**31 - 1)
    return [max(-128, min(_shifted(_high(unit, v), length - 20 + 23) - 128, 127)) for v in e]


@pytest.mark.parametrize("scale", [2.0**-7, 0.0371, 0.5, 1.37, 31.0, 1e-4])
def test_softmax_is_the_integers_of_its_source(scale):
    g = torch.Generator().manual_seed(0)
    codes = torch.cat([torch.randint(-128, 128, (12, 9), generator=g), torch.randint(120, 128, (4, 9), generator=g)])
    found = softmax_fixed(codes.float(), -1, scale, -128, 127)
    assert found.tolist() == [[float(v) for v in _softmax(row, scale)] for row in codes.tolist()]
    assert torch.equal(found, softmax_fixed(codes.T.float(), 0, scale, -128, 127).T)
    real = torch.softmax(codes.double() * scale, -1) * 256 - 128
    assert (found - real.clamp(-128, 127)).abs().max() <= 0.51  # one rounding, and 2^-20 of exponentials and reciprocal


def test_a_long_row_of_equals_has_room():
    assert softmax_fixed(torch.zeros(1, 8191), -1, 0.1, -128, 127).unique().tolist() == [-128.0]
    assert softmax_fixed(torch.zeros(1, 3), -1, 0.1, -128, 127).unique().tolist() == [85 - 128.0]
