"""Products of real rows and 4-bit weights in blocks, in the float32 order of ONNX Runtime's MatMulNBits on AVX-512."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from qfunc.numerics.kernels.integer import fma
from qfunc.specs._values import readable

_LANES, _ROWS, _TILE = 16, 128, 4


def float_product(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x w^T + bias for rows x [..., K] and the weight w = (q - z) s [N, K], which is rounded to float32.

    Sums begin at 0, and products are fused with them.  Rows are added along K, one entry after the other.  A row alone, and the
    last one of 128 n + 1 rows, has 16 lanes, of the entries l, l + 16, l + 32 ...; they are added by halves.  In whole runs of
    four output channels, four neighbours of them are added in order first.

    Source: ONNX Runtime, mlas/lib/sqnbitgemm_kernel_avx512.cpp and qnbitgemm.cpp; measured on onnxruntime 1.31, more than one
        thread.  With a single thread only a row alone has lanes.

    >>> float_product(torch.ones(2, 3), torch.tensor([[1.0, 2.0, 4.0]])).tolist()
    [[7.0], [7.0]]
    """
    rows, w = input.float().reshape(-1, input.shape[-1]), weight.float()
    alone = len(rows) % _ROWS == 1
    y = _along(rows[: len(rows) - alone], w)
    y = torch.cat((y, _in_lanes(rows[-1:], w))) if alone else y
    return (y if bias is None else y + bias).reshape(*input.shape[:-1], len(w))


def _along(rows: Tensor, w: Tensor) -> Tensor:
    y = rows.new_zeros(len(rows), len(w))
    for k in range(w.shape[1]):
        y = fma(rows[:, k, None], w[:, k], y)
    return y


def _in_lanes(row: Tensor, w: Tensor) -> Tensor:
    fill = (0, -w.shape[1] % _LANES)
    x, columns = F.pad(row[0], fill).reshape(-1, _LANES, 1), F.pad(w, fill).T.reshape(-1, _LANES, len(w))
    lanes = x.new_zeros(_LANES, len(w))
    for step, column in zip(x, columns, strict=True):
        lanes = fma(step, column, lanes)
    quarters = ((lanes[0::4] + lanes[1::4]) + lanes[2::4]) + lanes[3::4]
    tiled = torch.arange(len(w), device=w.device) < len(w) // _TILE * _TILE
    return torch.where(tiled, _by_halves(quarters), _by_halves(lanes))[None]


def _by_halves(lanes: Tensor) -> Tensor:
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return lanes[0]


@readable
@frozen
class MlasBlocks:
    """Products with 4-bit weights in blocks: rows along K, a row alone in 16 lanes.

    >>> MlasBlocks().form("linear").__name__
    'float_product'
    """

    def form(self, kind: str) -> Callable[..., Tensor] | None:
        """Return the function of a kind of op, or None."""
        return float_product if kind == "linear" else None
