"""The parts of a float32 matrix product that ONNX Runtime's threads compute, each in an order of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_PRODUCTS, _COLUMNS = 1 << 16, 16

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def in_parts(product: Product, a: Tensor, b: Tensor, bias: Tensor | None, threads: int) -> Tensor:
    """Return product(a, b, bias) of a [..., M, K], b [..., K, N] and a bias [N], computed by parts of rows or columns.

    At most `threads` threads share all matrices, and no more than one for each 2^16 products of one matrix, begun ones too.  If
    N > M, those of a matrix divide its columns, in groups of 16, else its rows; the first parts are the larger ones.

    Source: ONNX Runtime, mlas/lib/sgemm.cpp; measured on onnxruntime 1.31.

    >>> in_parts(lambda a, b, bias: a @ b, torch.ones(2, 3), torch.ones(3, 2), None, 2).tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    # Leading axes broadcast.
    matrices = max(1, torch.matmul(a[..., :1, :0], b[..., :0, :1]).numel())
    each = -(-min(threads, m * n * k // _PRODUCTS + 1) // matrices)
    if each == 1 or not m or not n:
        return product(a, b, bias)
    if n <= m:
        return torch.cat([product(part, b, bias) for part in torch.split(a, _shares(m, min(each, m)), -2)], -2)
    groups = -(-n // _COLUMNS)
    sizes = [size * _COLUMNS for size in _shares(groups, min(each, groups))]
    sizes[-1] -= groups * _COLUMNS - n
    biases = [None] * len(sizes) if bias is None else torch.split(bias, sizes)
    return torch.cat([product(a, part, own) for part, own in zip(torch.split(b, sizes, -1), biases, strict=True)], -1)


def _shares(total: int, count: int) -> list[int]:
    return [total // count + (i < total % count) for i in range(count)]


__all__ = ["in_parts"]
