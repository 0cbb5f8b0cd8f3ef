"""Norms in 32-bit integers: each number against Python's integers and fractions, and near the real one."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qfunc.numerics.kernels.fixed_rows import norm_constants, norm_fixed

INT32 = range(-(2**31), 2**31)


def _up(x: Fraction) -> int:
    # The nearest integer, halves up; every number of the chip has 32 bits.
    rounded = math.floor(x + Fraction(1, 2))
    assert rounded in INT32
    return rounded


def _scaled(x: int, factor: float) -> int:
    # RESCALE: a multiplier of 31 bits.
    fraction, exponent = math.frexp(factor)
    m = round(fraction * 2**31)
    return 0 if exponent < -31 else _up(Fraction(x * m) / Fraction(2) ** (31 - exponent))


def _norm(q: list[int], centred: bool, s_x: float, s_y: float, weight: list[float], bias: list[float], eps: float) -> list[int]:
    count = len(q)
    k = norm_constants(count, centred, s_x, s_y, torch.tensor(weight), torch.tensor(bias), eps)
    mean = _scaled(sum(q), 1 / count) if centred else 0
    c = [v - mean for v in q]
    r = sum(c) if centred else 0
    a = _up(sum(v * v for v in c) * Fraction(2) ** k.f)
    length = max(1, a - _scaled(r * r, 2.0**k.f / count) + k.epsilon)
    assert length in INT32
    up = (31 - length.bit_length()) // 2 * 2
    unit = length << up
    y = round(128 / math.sqrt((unit >> 23) / 256 + 1 / 512))
    y = _up(Fraction(y * (3 * 2**29 - _up(Fraction(unit * y * y, 2**16))), 2**7))
    normal = []
    for v in c:
        centre = ((v << k.h) - (_scaled(r, 2.0**k.h / count) if centred else 0)) << (up // 2)
        assert centre in INT32
        normal.append(_up(Fraction(centre * y, 2**31)))
    found = []
    for i, v in enumerate(normal):
        v = v if k.limit is None else max(-k.limit, min(v, k.limit))
        total = _up(Fraction(v * int(k.factors[i]), 2**k.shift)) + int(k.offsets[i])
        assert total in INT32
        found.append(max(-128, min(_up(Fraction(total, 2**k.bits)) + 3, 127)))
    return found


@st.composite
def rows(draw: st.DrawFn) -> list[int]:
    """Codes minus their zero point: of all lengths, constant ones, single outliers, both ends."""
    count = draw(st.one_of(st.integers(1, 9), st.sampled_from((64, 257, 1000))))
    low = draw(st.sampled_from((0, -128, -255)))
    ends = draw(st.sampled_from(((low, low + 255), (0, 1), (-1, 1), (low, low))))
    seed = draw(st.integers(0, 2**16))
    found = torch.randint(ends[0], ends[1] + 1, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    if draw(st.booleans()):
        found[0] = low + draw(st.sampled_from((0, 255)))
    return found


NUMBERS = st.sampled_from((0.0, 1.0, -1.0, 0.3, -2.75, 40.0, 1e-6))
SCALES = st.floats(-8, 2).map(lambda e: 10.0**e)


@settings(max_examples=150, deadline=None)
@given(rows(), st.booleans(), SCALES, SCALES, st.lists(NUMBERS, min_size=3, max_size=3), st.sampled_from((1e-5, 1e-12, 0.1)))
def test_norms_are_the_integers_of_their_definition(q, centred, s_x, s_y, numbers, eps):
    weight, bias = ([numbers[(i + shift) % 3] for i in range(len(q))] for shift in (0, 1))
    found = _found(torch.tensor([q]), centred, s_x, s_y, torch.tensor(weight), torch.tensor(bias), eps)
    assert found[0].long().tolist() == _norm(q, centred, s_x, s_y, weight, bias, eps)


def _found(q: Tensor, centred: bool, s_x: float, s_y: float, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return norm_fixed(q.float(), 0, (-1, q.shape[-1]), centred, s_x, s_y, weight, bias, eps, 3, -128, 127)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("count", [2, 7, 64, 1000])
@pytest.mark.parametrize("s_x", [1e-4, 0.01, 0.5])
def test_codes_are_within_a_few_hundredths_of_the_real_values(centred, count, s_x):
    g = torch.Generator().manual_seed(count)
    q = torch.cat([torch.randint(-255, 256, (40, count), generator=g) // d for d in (2, 20, 80)])
    weight, bias = torch.randn(count, generator=g), torch.randn(count, generator=g)
    x = q.double() * s_x
    c = x - x.mean(-1, keepdim=True) if centred else x
    real = c / (c.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias
    s_y = float(real.abs().max()) / 127
    found = _found(q, centred, s_x, s_y, weight, bias, 1e-5)
    error = (found - (real / s_y + 3).clamp(-128, 127)).abs().max()
    assert error <= 0.5 + 127 * 2.0**-14 + 2.0**-9  # one rounding, the inverse root, and the sum of squares


def test_extreme_scales_saturate():
    one, none = torch.ones(2), torch.zeros(2)
    assert _found(torch.tensor([[-3, 3]]), True, 1.0, 1e-12, one, none, 1e-5).tolist() == [[-128.0, 127.0]]
    assert _found(torch.tensor([[-3, 3]]), True, 1e-12, 1.0, one, none, 1e-5).tolist() == [[3.0, 3.0]]
