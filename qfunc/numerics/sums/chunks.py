"""Products of int8 rows and weights in blocks, in the chunks of K of oneDNN's matrix kernels, as OpenVINO runs them."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.numerics.kernels.integer import fma
from qfunc.numerics.sums.dynamic import input_codes, input_scales, multipliers

_UNIT, _MOST, _LEAST, _USUAL = 16, 64, 16, 1024


def chunk_size(size: int, block: int) -> int:
    """Return the entries of K in one chunk: all up to 1024, else by the divisors of K / 16.

    Args:
        size: K.
        block: The entries of K that share a scale of the weight.

    >>> [chunk_size(k, 32) for k in (1024, 1056, 1088, 2048, 2144)]
    [1024, 512, 544, 1024, 1024]
    """
    units = size // _UNIT
    divisor = max(d for d in range(1, _MOST + 1) if units % d == 0)
    chunk = _UNIT * divisor
    if divisor < _LEAST:
        chunk = _USUAL
    elif chunk % block:
        chunk = _UNIT * block
    return min(chunk, size)


def chunked_product(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None, group: int) -> Tensor:
    """Return x [..., K] times the weights codes * scale, [O, K] in float32; see `specs.BrgemmChunks`.

    Args:
        x: Real rows; of each group the largest |x| is 0, or at least 2^-120 and below 2^100.
        codes: q_w - z_w, [O, K].
        scale: [O, K / block].
        bias: [O] or None.
        group: The entries of K that share a scale of the input, a divisor of the block.
    Source: measured on openvino 2026.4.1, x86-64 with AVX-512 VNNI.

    >>> chunked_product(torch.full((1, 32), 127.0), torch.ones(2, 32), torch.full((2, 1), 0.5), None, 32).tolist()
    [[2032.0, 2032.0]]
    """
    rows, width = x.float().reshape(-1, x.shape[-1]), x.shape[-1]
    span = (group, 127.0, True, "last", False)
    r = multipliers(rows, *span)
    s_x = input_scales(rows, r, *span[:4], "float32", False)
    q = input_codes(rows, r, None, -127, 127, "half_even", False).double()
    block = width // scale.shape[1]
    chunk, total = chunk_size(width, block), torch.zeros(len(rows), len(codes), device=x.device)
    for start in range(0, width, chunk):
        v = torch.zeros_like(total)
        for at in range(start, min(start + chunk, width), group):
            acc = (q[:, at : at + group] @ codes[:, at : at + group].double().T).float()
            v = fma(acc * s_x[:, at // group, None], scale[:, at // block].expand_as(acc), v)
        total = total + v
    total = total if bias is None else total + bias
    return total.reshape(*x.shape[:-1], len(codes))
