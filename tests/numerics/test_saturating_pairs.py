"""Pairs of products that saturate to 16 bits, against loops over Python integers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qfunc.numerics.kernels.accumulators import conv_codes, linear_codes
from qfunc.numerics.sums.saturating_pairs import outputs_at_risk, saturate_pairs_conv, saturate_pairs_linear


def paired(codes: list[int], weights: list[int], zero: int) -> int:
    """The sum as an AVX2 kernel has it: pairs of u8 * s8 saturate, then the zero point is subtracted."""
    products = [x * w for x, w in zip(codes, weights, strict=True)]
    pairs = [sum(products[i : i + 2]) for i in range(0, len(products), 2)]
    return sum(min(max(p, -32768), 32767) for p in pairs) - zero * sum(weights)


def drawn(shape: tuple[int, ...], low: int, high: int, seed: int) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).float()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_convolutions(data: Any) -> None:
    groups, inner, outer = (data.draw(st.integers(1, 3)) for _ in range(3))
    kernel, stride, padding, dilation = (data.draw(st.tuples(st.integers(*r), st.integers(*r))) for r in
                                         ((1, 3), (1, 2), (0, 2), (1, 2)))  # fmt: skip
    zero, seed = data.draw(st.sampled_from((0, 128, 255))), data.draw(st.integers(0, 99))
    x = drawn((2, groups * inner, 5, 6), data.draw(st.sampled_from((0, 200))), 256, seed)
    weight = drawn((groups * outer, inner, *kernel), data.draw(st.sampled_from((-127, 100))), 128, seed + 1)
    arguments = stride, padding, dilation
    acc = conv_codes(x, zero, weight, None, *arguments, groups, [])
    risk = torch.nonzero(outputs_at_risk(weight.movedim(1, -1).flatten(1), 0, 255)).flatten()
    found = saturate_pairs_conv(acc, x, zero, weight, *arguments, risk)
    whole = torch.nn.functional.pad(x - zero, (padding[1], padding[1], padding[0], padding[0])) + zero
    for n, o, row, column in itertools.product(*map(range, found.shape)):
        first = o // outer * inner
        at = [(r, c, i) for r in range(kernel[0]) for c in range(kernel[1]) for i in range(inner)]
        codes = [
            int(whole[n, first + i, row * stride[0] + r * dilation[0], column * stride[1] + c * dilation[1]]) for r, c, i in at
        ]
        assert int(found[n, o, row, column]) == paired(codes, [int(weight[o, i, r, c]) for r, c, i in at], zero)


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_linear_layers(size: int) -> None:
    x, weight = drawn((4, size), 150, 256, size), drawn((6, size), 90, 128, size) * torch.tensor([[1.0], [-1.0]] * 3)
    risk = torch.nonzero(outputs_at_risk(weight, 0, 255)).flatten()
    found = saturate_pairs_linear(linear_codes(x, 7, weight, None, []), x, weight, risk)
    wanted = [[paired(x[n].int().tolist(), weight[o].int().tolist(), 7) for o in range(6)] for n in range(4)]
    assert found.int().tolist() == wanted
    assert (size == 1) == (not len(risk))


def test_weights_of_seven_bits_never_saturate() -> None:
    # 2 * 255 * 64 = 32640 is a 16-bit integer.
    assert not outputs_at_risk(torch.tensor([[64.0, 64.0, -64.0, -64.0]]), 0, 255).any()
    assert outputs_at_risk(torch.tensor([[64.0, 65.0]]), 0, 255).all()
