"""The searches of GGUF's scales and minimums, in exact rationals; tests/lowering/gguf compares with ggml's bytes."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from qfunc.numerics.search import minimums, scales
from qfunc.numerics.search.steps import nearest

X = torch.randn(40, 32, generator=torch.Generator().manual_seed(0))


def test_codes_of_minimums() -> None:
    """The nearest of 16 steps from the least value, by rationals; the drawn values have no ties."""
    scale, low = minimums.of_ends(X, 4)
    codes = minimums.codes_of_ends(X, scale, low, 4)
    for row, s, m, found in zip(X.tolist(), scale.tolist(), low.tolist(), codes.tolist(), strict=True):
        wanted = [min(15, int((Fraction(x) - Fraction(m)) / Fraction(s) + Fraction(1, 2))) for x in row]
        assert found == wanted


def test_constant_and_subnormal_blocks_have_the_code_0() -> None:
    x = torch.stack([torch.full((32,), 3.0), torch.arange(32.0) * 2.0**-146])
    assert not minimums.codes_of_ends(x, *minimums.of_ends(x, 5), 5).any()


def error(row: list[float], weights: list[float], codes: list[float], s: float, m: float) -> Fraction:
    """The weighted squared error of a block, exactly."""
    pairs = zip(row, weights, codes, strict=True)
    return sum((Fraction(w) * (Fraction(q) * Fraction(s) + Fraction(m) - Fraction(x)) ** 2 for x, w, q in pairs), Fraction(0))


def test_the_search_of_two_bits_is_at_least_as_good_as_its_start() -> None:
    """The sum of |x| |q s + m - x|, of steps from min(x, 0) to max(x); sums in float32 move it by less than a thousandth."""
    s, below, codes = minimums.search(X, 2)
    first = minimums.of_ends(torch.cat([X, torch.zeros(40, 1)], 1), 2)
    start = (X - first[1][:, None]).div(first[0][:, None]).round()
    for row, *parts in zip(X, s, -below, codes, *first, start, strict=True):
        found, wanted = ((row.abs() * (q * step + low - row).abs()).double().sum() for step, low, q in (parts[:3], parts[3:]))
        assert found <= wanted * 1.001


def test_the_search_of_three_bits_is_at_least_as_good_as_its_start() -> None:
    """The error of the codes whose largest magnitude has -4, with the least-squares scale."""
    s, codes = scales.search(X, 3)
    for i, row in enumerate(X.tolist()):
        weights, largest = [x * x for x in row], max(row, key=abs)
        start = [max(-4, min(3, round(-4 * x / largest))) for x in row]
        products = [(w * x * q, w * q * q) for w, x, q in zip(weights, row, start, strict=True)]
        best = sum(p for p, _ in products) / sum(q for _, q in products)
        found = error(row, weights, codes[i].tolist(), s[i].item(), 0.0)
        assert found <= error(row, weights, start, best, 0.0) * Fraction(1001, 1000)
    assert ((codes >= -4) & (codes <= 3)).all()


@pytest.mark.parametrize("bits", [4, 5])
def test_the_search_of_minimums_is_at_least_as_good_as_its_start(bits: int) -> None:
    """The error of steps from min(x, 0) to max(x); sums in float32 move it by less than a thousandth."""
    s, below, codes = minimums.search(X, bits)
    first = minimums.of_ends(torch.cat([X, torch.zeros(40, 1)], 1), bits)
    start = (X - first[1][:, None]).div(first[0][:, None]).round()
    for i, row in enumerate(X.tolist()):
        root = (sum(x * x for x in row) / 32) ** 0.5
        weights = [root + abs(x) for x in row]
        found = error(row, weights, codes[i].tolist(), s[i].item(), -below[i].item())
        assert found <= error(row, weights, start[i].tolist(), first[0][i].item(), first[1][i].item()) * Fraction(1001, 1000)


def test_the_search_of_scales_is_at_least_as_good_as_its_start() -> None:
    """The error of the scale whose largest magnitude has the code -32."""
    s, codes = scales.search(X, 6)
    for i, row in enumerate(X.tolist()):
        weights, largest = [x * x for x in row], max(row, key=abs)
        start = [max(-32, min(31, round(-32 * x / largest))) for x in row]
        found = error(row, weights, codes[i].tolist(), s[i].item(), 0.0)
        assert found <= error(row, weights, start, -largest / 32, 0.0) * Fraction(1001, 1000)


def test_zeros_have_no_scale() -> None:
    s, codes = scales.search(torch.zeros(1, 16), 6)
    assert s.item() == 0
    assert codes.tolist() == [[-32.0] * 16]


def test_numbers_beyond_22_bits_wrap_around() -> None:
    """As ggml's nearest_int: the lowest 23 bits of x + 3 * 2^22, minus 2^22; the spacing of the sum is 2, then 1/2."""
    assert nearest(torch.tensor([2.0**22 - 1, 2.0**23, -(2.0**22) - 4])).tolist() == [2.0**22 - 1, -(2.0**21), 2.0**22 - 8]
