"""Products of two real tensors in float32, in the order of sums of ONNX Runtime's MatMul on x86-64 with AVX-512.

The threads of ONNX Runtime compute the parts of a product, each in an order of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from qfunc.numerics.kernels.integer import fma

_LEAST, _LANES, _FOUR = 16, 8, 4
_PRODUCTS, _COLUMNS = 1 << 16, 16
Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def mlas_matmul(
    input: Tensor, other: Tensor, transposed: bool = False, factor: float | None = None, depth: int = 128, threads: int = 1
) -> Tensor:
    """Return a b, or factor * a b, of a [..., M, K] and b [..., K, N], whose leading axes broadcast.

    Several `threads` compute parts of rows or columns (`_in_parts`); the rest is true of each part.

    Entries are added along K, one after the other, by fused multiply-adds.  K is cut into slices of `depth` entries, or of a
    multiple if N is small; the sum of a slice is multiplied by the factor and fused with what the slices before it gave.

    A row alone without a factor, M = 1, has another order, without fused multiply-adds.  Four neighbours along K are added in
    order, and then to the sum.  If b is `transposed` in memory, there are eight lanes of the entries k, k + 8, k + 16 ...; so
    are there of each row if N = 1 and b is not.

    An axis that a tensor with one axis lacks is 1 meanwhile.  If `other` has two axes, all rows of `input` are one matrix.

    Source: ONNX Runtime, mlas/lib/sgemm.cpp, x86_64/FgemmKernelAvx512FCommon.h, SgemmKernelM1Avx.S and
        SgemmKernelM1TransposeBAvx.S; measured on onnxruntime 1.31.

    >>> mlas_matmul(torch.ones(2, 3), torch.tensor([[1.0], [2.0], [4.0]]), factor=0.5).tolist()
    [[3.5], [3.5]]
    """
    a, b = input.float(), other.float()
    rows = a[None] if a.ndim == 1 else a
    columns = b[:, None] if b.ndim == 1 else b
    one_matrix = columns.ndim == 2
    matrices = rows.reshape(-1, rows.shape[-1]) if one_matrix else rows
    order = _Order(transposed, factor, depth, columns.shape[-1] == 1)
    y = _in_parts(order.product, matrices, columns, None, threads)
    y = y.reshape(*rows.shape[:-1], columns.shape[-1]) if one_matrix else y
    y = y.squeeze(-1) if b.ndim == 1 else y
    return y.squeeze(-1 if b.ndim == 1 else -2) if a.ndim == 1 else y


def mlas_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, depth: int = 128, threads: int = 1) -> Tensor:
    """Return x w^T + bias of rows x [..., K] and a weight w [N, K], in the order of `mlas_matmul` with w^T stored transposed.

    All rows are one matrix.  The sums of slices are added to the bias one after the other; of a row alone, its whole sum is.

    Source: ONNX Runtime, contrib_ops/cpu/quantization/matmul_nbits.cc: a weight without a kernel of its own is dequantized.

    >>> mlas_linear(torch.ones(2, 3), torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([0.5])).tolist()
    [[7.5], [7.5]]
    """
    rows, columns = input.float().reshape(-1, input.shape[-1]), weight.float().T
    y = _in_parts(_Order(True, None, depth, False).product, rows, columns, bias, threads)
    return y.reshape(*input.shape[:-1], columns.shape[-1])


@frozen
class _Order:
    # The order of sums of a part; `single`: the whole product has one column, whatever its parts have.
    transposed: bool
    factor: float | None
    depth: int
    single: bool

    def product(self, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
        """Return a b, times the factor, plus the bias."""
        if self.factor is None and a.shape[-2] == 1:
            y = _in_lanes(a, b) if self.transposed else _by_fours(a, b)
        elif self.factor is None and self.single and not self.transposed:
            y = _in_lanes(b.mT, a.mT).mT
        else:
            return _along(a, b, bias, self.factor, self.depth)
        return y if bias is None else y + bias


def _along(a: Tensor, b: Tensor, bias: Tensor | None, factor: float | None, depth: int) -> Tensor:
    count, width = a.shape[-1], b.shape[-1]
    stride = _slice_size(count, width, depth)
    alpha = torch.tensor(1.0 if factor is None else factor, dtype=torch.float32, device=a.device)
    shape = (a[..., :1] * b[..., :1, :]).shape
    total = None if bias is None else bias.expand(shape)
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


def _in_parts(product: Product, a: Tensor, b: Tensor, bias: Tensor | None, threads: int) -> Tensor:
    """Return product(a, b, bias) of a [..., M, K], b [..., K, N] and a bias [N], computed by parts of rows or columns.

    At most `threads` threads share all matrices, and no more than one for each 2^16 products of one matrix, begun ones too.  If
    N > M, those of a matrix divide its columns, in groups of 16, else its rows; the first parts are the larger ones.

    Source: ONNX Runtime, mlas/lib/sgemm.cpp; measured on onnxruntime 1.31.

    >>> _in_parts(lambda a, b, bias: a @ b, torch.ones(2, 3), torch.ones(3, 2), None, 2).tolist()
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
