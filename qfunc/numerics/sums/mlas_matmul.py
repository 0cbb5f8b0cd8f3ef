"""Products of two real tensors in float32, in the order of sums of ONNX Runtime's MatMul on x86-64 with AVX-512."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from qfunc.numerics.kernels.integer import fma

_LEAST, _LANES, _FOUR = 16, 8, 4


def mlas_matmul(
    input: Tensor, other: Tensor, transposed: bool = False, factor: float | None = None, depth: int = 128
) -> Tensor:
    """Return a b, or factor * a b, of a [..., M, K] and b [..., K, N], whose leading axes broadcast.

    Entries are added along K, one after the other, by fused multiply-adds.  K is cut into slices of `depth` entries, or of a
    multiple if N is small; the sum of a slice is multiplied by the factor and fused with what the slices before it gave.

    A row alone without a factor, M = 1, has another order, without fused multiply-adds.  Four neighbours along K are added in
    order, and then to the sum.  If b is `transposed` in memory, there are eight lanes of the entries k, k + 8, k + 16 ...; so
    are there of each row if N = 1 and b is not.

    An axis that a tensor with one axis lacks is 1 meanwhile.  If `other` has two axes, all rows of `input` are one matrix.

    Source: ONNX Runtime, mlas/lib/sgemm.cpp, x86_64/FgemmKernelAvx512FCommon.h, SgemmKernelM1Avx.S and
        SgemmKernelM1TransposeBAvx.S; measured on onnxruntime 1.31, with at least as many matrices as threads.

    >>> mlas_matmul(torch.ones(2, 3), torch.tensor([[1.0], [2.0], [4.0]]), factor=0.5).tolist()
    [[3.5], [3.5]]
    """
    a, b = input.float(), other.float()
    rows = a[None] if a.ndim == 1 else a
    columns = b[:, None] if b.ndim == 1 else b
    if columns.ndim == 2:
        y = _matrices(rows.reshape(-1, rows.shape[-1]), columns, transposed, factor, depth)
        y = y.reshape(*rows.shape[:-1], columns.shape[-1])
    else:
        y = _matrices(rows, columns, transposed, factor, depth)
    y = y.squeeze(-1) if b.ndim == 1 else y
    return y.squeeze(-1 if b.ndim == 1 else -2) if a.ndim == 1 else y


def _matrices(a: Tensor, b: Tensor, transposed: bool, factor: float | None, depth: int) -> Tensor:
    if factor is None and a.shape[-2] == 1:
        return _in_lanes(a, b) if transposed else _by_fours(a, b)
    if factor is None and b.shape[-1] == 1 and not transposed:
        return _in_lanes(b.mT, a.mT).mT
    return _along(a, b, factor, depth)


def _along(a: Tensor, b: Tensor, factor: float | None, depth: int) -> Tensor:
    count, width = a.shape[-1], b.shape[-1]
    stride = _slice_size(count, width, depth)
    alpha = torch.tensor(1.0 if factor is None else factor, dtype=torch.float32, device=a.device)
    shape = (a[..., :1] * b[..., :1, :]).shape
    total: Tensor | None = None
    for first in range(0, count, stride):
        sums = torch.zeros(shape, device=a.device)
        for k in range(first, min(count, first + stride)):
            sums = fma(a[..., k, None], b[..., k, None, :], sums)
        total = sums * alpha if total is None else fma(sums, alpha, total)
    return torch.zeros(shape, device=a.device) if total is None else total


def _slice_size(count: int, width: int, depth: int) -> int:
    # MLAS keeps the number of entries of a packed panel of b: narrow ones are deeper.
    stride, columns = depth, depth
    while width < count and columns > _LEAST and columns // 2 >= width:
        stride, columns = stride * 2, columns // 2
    return stride


def _by_fours(a: Tensor, b: Tensor) -> Tensor:
    products = a.mT * b
    depth = products.shape[-2]
    total = torch.zeros_like(products[..., :1, :].expand(*products.shape[:-2], 1, products.shape[-1]))
    at = 0
    while at < depth:
        left = depth - at
        count = _FOUR if left >= _FOUR else min(left, 2)
        part = products[..., at : at + 1, :]
        for k in range(at + 1, at + count):
            part = part + products[..., k : k + 1, :]
        total, at = part + total, at + count
    return total


def _in_lanes(a: Tensor, b: Tensor) -> Tensor:
    # Four columns are reduced together, then two, then one; each number of columns adds the lanes in another order.
    products = F.pad(a.mT * b, (0, 0, 0, -a.shape[-1] % _LANES))
    lanes = torch.zeros_like(products[..., :_LANES, :])
    for at in range(0, products.shape[-2], _LANES):
        lanes = lanes + products[..., at : at + _LANES, :]
    n = lanes.unbind(-2)
    fours = (((n[0] + n[1]) + n[2]) + n[3]) + (((n[4] + n[5]) + n[6]) + n[7])
    twos = ((n[2] + n[0]) + (n[6] + n[4])) + ((n[3] + n[1]) + (n[7] + n[5]))
    ones = ((n[0] + n[1]) + (n[2] + n[3])) + ((n[4] + n[5]) + (n[6] + n[7]))
    width = fours.shape[-1]
    column = torch.arange(width, device=fours.device)
    whole = width // _FOUR * _FOUR
    rest = torch.where(column < whole + (width - whole) // 2 * 2, twos, ones)
    return torch.where(column < whole, fours, rest)[..., None, :]


__all__ = ["mlas_matmul"]
