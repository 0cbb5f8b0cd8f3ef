"""Scales of blocks, x_hat = q s, as llama.cpp's quantizers find them in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.numerics.search.steps import nearest, ordered_sum, quotient

_ONE_BY_ONE, _PASSES = 3, 5
"""Bits of the codes that are improved one by one, and how often."""
NOTHING = 1e-15
"""Blocks whose largest magnitude, or largest scale, is below this are 0."""


def search(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return (s, q) of each block, the last axis, with a small error sum_i x_i^2 (q_i s - x_i)^2; s has a sign.

    The first x of the largest magnitude has the code -n, n = 2^(bits - 1), for s = -x / n.  Scales of n + i / 10 in place of n
    are tried, i from -9 to 9, with the least-squares s of their codes.  A block of zeros has s = 0 and q = -n.

    With 3 bits, other codes are tried for one entry after the other, five times, in place of other scales, and a block of zeros
    has q = -n too.

    Source: ggml, src/ggml-quants.c, make_qx_quants and make_q3_quants.

    >>> [t.tolist() for t in search(torch.tensor([[4.0, -2.0]]), 3)]
    [[-1.0], [[-4.0, 2.0]]]
    """
    end = float(2 ** (bits - 1))
    largest = x.gather(-1, x.abs().argmax(-1, keepdim=True))[..., 0]
    zero = largest.abs() < torch.tensor(NOTHING)
    weight = x * x
    codes, product, square = _sums(x, weight, quotient(-end, largest), end)
    if bits == _ONE_BY_ONE:
        codes, product, square = _improved(x, weight, codes, product, square, end)
        scale = torch.where(square > 0, product / square, 0.0)
        return torch.where(zero, 0.0, scale), torch.where(zero[..., None], -end, codes)
    scale = torch.where(square == 0, 0.0, product / square)
    best = scale * product
    for i in (*range(-9, 0), *range(1, 10)):
        number = -(torch.tensor(0.1) * i + end)
        tried, product, square = _sums(x, weight, quotient(number, largest), end)
        better = (square > 0) & (product * product > best * square)
        codes, scale = torch.where(better[..., None], tried, codes), torch.where(better, product / square, scale)
        best = torch.where(better, scale * product, best)
    return torch.where(zero, 0.0, scale), torch.where(zero[..., None], -end, codes)


def _sums(x: Tensor, weight: Tensor, steps: Tensor, end: float) -> tuple[Tensor, Tensor, Tensor]:
    codes = nearest(steps[..., None] * x).clamp(-end, end - 1)
    return codes, ordered_sum(weight * x * codes), ordered_sum(weight * codes * codes)


def _improved(
    x: Tensor, weight: Tensor, codes: Tensor, product: Tensor, square: Tensor, end: float
) -> tuple[Tensor, Tensor, Tensor]:
    # One entry after the other has the code nearest to x / s of all others, where this increases product^2 / square.
    codes = codes.clone()
    for i in [*range(x.shape[-1])] * _PASSES:
        value, w, code = x[..., i], weight[..., i], codes[..., i]
        others, rest = product - w * value * code, square - w * code * code
        new = nearest(value * rest / others).clamp(-end, end - 1)
        new_product, new_square = others + w * value * new, rest + w * new * new
        larger = new_product * new_product * square > product * product * new_square
        better = (others > 0) & (new != code) & (new_square > 0) & larger
        codes[..., i] = torch.where(better, new, code)
        product, square = torch.where(better, new_product, product), torch.where(better, new_square, square)
    return codes, product, square
