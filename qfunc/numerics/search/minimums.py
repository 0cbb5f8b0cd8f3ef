"""Scales and minimums of blocks, x_hat = q s + m, as llama.cpp's quantizers find them in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.numerics.search.steps import nearest, ordered_sum, quotient

_STEPS = {2: (-0.5, 15), 4: (-1.0, 20), 5: (-0.5, 15)}
"""Bits of the codes -> (the first step of the search from the number of codes, the last of its steps of 0.1)."""
_ABSOLUTE = 2
"""Bits of the codes whose search has the errors |x_hat - x| and the weights |x|."""


def of_ends(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return s = (max x - min x) / (2^bits - 1) and m = min x of each block, the last axis; of equal zeros m is the first.

    Source: ggml, src/ggml-quants.c, quantize_row_q4_1_ref.

    >>> of_ends(torch.tensor([[-1.0, 29.0]]), 4)
    (tensor([2.]), tensor([-1.]))
    """
    low, high = x.gather(-1, x.argmin(-1, keepdim=True))[..., 0], x.amax(-1)
    return (high - low + 0.0) / torch.full_like(low, 2**bits - 1), low  # not -0, which zeros of both signs give


def codes_of_ends(x: Tensor, scale: Tensor, minimum: Tensor, bits: int) -> Tensor:
    """Return q = floor((x - m) * (1/s) + 1/2) in [0, 2^bits - 1]; 0 where s is 0, or 1/s is infinite.

    >>> codes_of_ends(torch.tensor([[-1.0, 2.0, 29.0]]), torch.tensor([2.0]), torch.tensor([-1.0]), 4)
    tensor([[ 0.,  2., 15.]])
    """
    inverse = quotient(1.0, scale)
    inverse = torch.where(inverse.isinf(), 0.0, inverse)
    return torch.floor((x - minimum[..., None]) * inverse[..., None] + 0.5).clamp(0, 2**bits - 1)


def search(x: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (s, -m, q) of each block, the last axis, with a small error sum_i w_i (q_i s + m - x_i)^2, m <= 0.

    w_i = sqrt(mean x^2) + |x_i|; with 2 bits the error is sum_i |x_i| |q_i s + m - x_i|.  From s = (max x - m) / (2^bits - 1)
    and m = min(min x, 0) on, codes of several scales are tried, with the least-squares s and m of each; each better pair is
    the start of the next trial.

    Source: ggml, src/ggml-quants.c, make_qkx2_quants, quantize_row_q4_K_ref and quantize_row_q2_K_ref.

    >>> [t.round(decimals=3).tolist() for t in search(torch.tensor([[0.0, 15.0, 30.0]]), 4)][1:]
    [[0.0], [[0.0, 7.0, 14.0]]]
    """
    top, (first, last) = float(2**bits - 1), _STEPS[bits]
    weight, absolute = x.abs(), bits == _ABSOLUTE
    if not absolute:
        # In float64: torch's float32 roots are not always rounded correctly.
        weight = (ordered_sum(x * x) / x.shape[-1]).double().sqrt().float()[..., None] + weight
    total, moment = ordered_sum(weight), ordered_sum(weight * x)
    low, high = x.amin(-1).clamp(max=0), x.amax(-1)
    constant = high == low
    steps = quotient(top, high - low)
    scale, minimum = quotient(1.0, steps), low
    codes = nearest(steps[..., None] * (x - low[..., None])).clamp(0, top)
    error = _error(x, weight, codes, scale, minimum, absolute)
    for step in range(last + 1):
        number = torch.tensor(0.1) * step + first + top
        steps = quotient(number, high - minimum)
        tried = nearest(steps[..., None] * (x - minimum[..., None])).clamp(0, top)
        weighted = weight * tried
        linear, square, product = ordered_sum(weighted), ordered_sum(weighted * tried), ordered_sum(weighted * x)
        determinant = total * square - linear * linear
        new_scale = (total * product - moment * linear) / determinant
        new_minimum = (square * moment - linear * product) / determinant
        positive = new_minimum > 0
        new_scale = torch.where(positive, product / square, new_scale)
        new_minimum = torch.where(positive, 0.0, new_minimum)
        new_error = _error(x, weight, tried, new_scale, new_minimum, absolute)
        better = (determinant > 0) & (new_error < error)
        error, scale = torch.where(better, new_error, error), torch.where(better, new_scale, scale)
        minimum, codes = torch.where(better, new_minimum, minimum), torch.where(better[..., None], tried, codes)
    scale, minimum = torch.where(constant, 0.0, scale), torch.where(constant, low, minimum)
    return scale, -minimum, torch.where(constant[..., None], 0.0, codes)


def _error(x: Tensor, weight: Tensor, codes: Tensor, scale: Tensor, minimum: Tensor, absolute: bool) -> Tensor:
    difference = scale[..., None] * codes + minimum[..., None] - x
    return ordered_sum(weight * (difference.abs() if absolute else difference * difference))
