"""Products of int8 rows and weights in blocks, in the float32 lanes of ONNX Runtime's MatMulNBits on AVX-512 with VNNI.

A vector register has 64 codes along K; its 16 dots are sums of four products each, exact in 32 bits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from qfunc.numerics.kernels.integer import fma

_STEP, _DOT, _LANES = 128, 4, 16


def quantize_rows(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Return (codes, scales) of rows along the last axis: q = half_even(x (127 / m)) and s = m / 127, m the block's max |x|.

    Both quotients are rounded to float32.  A code is 0 where the product is no number, as that of an m below 2^-121 is.
    [..., K] becomes [..., B, block] and [..., B]: the last block is filled with zeros.

    Source: ONNX Runtime, mlas/lib/sqnbitgemm_kernel_avx512.cpp, QuantizeARow_CompInt8_avx512.

    >>> codes, scales = quantize_rows(torch.tensor([254.0, -3.0, 1.0]), 2)
    >>> codes.tolist(), scales.tolist()
    ([[127.0, -2.0], [127.0, 0.0]], [2.0, 0.007874015718698502])
    """
    padded = F.pad(x.float(), (0, -x.shape[-1] % block))
    blocks = padded.reshape(*x.shape[:-1], padded.shape[-1] // block, block)
    largest, most = blocks.abs().amax(-1), torch.tensor(127.0)
    products = blocks * torch.where(largest != 0, most / largest, 0.0)[..., None]
    return torch.where(products.isfinite(), products, 0.0).round(), largest / most


def block_product(
    x: Tensor, codes: Tensor, scale: Tensor, zero_point: Tensor, bias: Tensor | None, block: int, bits: int
) -> Tensor:
    """Return x [..., K] times the weights (codes - zero_point) * scale, [N, K] in float32: y = (v + bias) + w.

    v: the sum of q_x codes s_x s_w in lanes; codes are unsigned, and s_x s_w is rounded.  w: the sum over the blocks in order
    of (s_x sum(q_x)) (-s_w z), each factor rounded, with fused multiply-adds.  See `specs.RegisterLanes`.

    Args:
        x: Real rows, finite.
        codes: [N, K] in [0, 2^bits).
        scale, zero_point: [N, B], with K filled up to B blocks.
        bias: [N] or None.
        block: 16, 32, 64, 128 or 256 entries along K; with 2 bits 32, 64 or 128.
        bits: 2, 4 or 8.
    Source: ONNX Runtime, mlas/lib/sqnbitgemm_kernel_avx512vnni.cpp; measured on onnxruntime 1.31.

    >>> w = torch.full((1, 16), 9.0)
    >>> block_product(torch.full((1, 16), 127.0), w, torch.ones(1, 1), torch.full((1, 1), 8.0), None, 16, 4).tolist()
    [[2032.0]]
    """
    blocks = scale.shape[1]
    q, s = quantize_rows(x.reshape(-1, x.shape[-1]), block)
    weight = F.pad(codes.float(), (0, blocks * block - codes.shape[1]))
    rows = _Rows(q.flatten(1), weight, s, scale.float(), block)
    lanes = rows.groups_of_four() if bits == 2 else rows.interleaved()
    y = _total(lanes, block, bits)
    y = y if bias is None else y + bias
    level, offset = s * q.sum(-1), -(scale.float() * zero_point)
    correction = torch.zeros_like(y)
    for k in range(blocks):
        correction = fma(level[:, k, None], offset[:, k], correction)
    return (y + correction).reshape(*x.shape[:-1], len(codes))


def stored_bits(bits: int) -> int:
    """Return the width in which MatMulNBits stores codes: the least of 2, 4 and 8 that holds them.

    >>> [stored_bits(n) for n in (2, 3, 4, 5)]
    [2, 4, 4, 8]
    """
    return next(width for width in (2, 4, 8) if width >= bits)


class _Rows:
    # Codes of rows [M, K] and of columns [N, K], and their scales [M, B] and [N, B].
    def __init__(self, rows: Tensor, columns: Tensor, row_scales: Tensor, column_scales: Tensor, block: int) -> None:
        self.rows, self.columns, self.row_scales, self.column_scales = rows, columns, row_scales, column_scales
        self.block, self.blocks = block, row_scales.shape[1]

    def interleaved(self) -> Tensor:
        """Return the lanes [lanes, M, N] of kernels for 4 and 8 bits: steps of 128 codes, then single blocks."""
        lanes = self.rows.new_zeros(_LANES, len(self.rows), len(self.columns))
        step, end = _interleaved(self.block).to(lanes.device), self.rows.shape[1] // _STEP * _STEP
        for at in range(0, end, _STEP):
            lanes = fma(*self.sums(step + at), lanes)
        lanes = _halved(lanes) if self.block <= 32 else lanes
        single = torch.arange(self.block, device=lanes.device).reshape(min(self.block // 2, len(lanes)), -1)
        for at in range(end, self.rows.shape[1], self.block):
            lanes = fma(*self.sums(single + at), lanes)
        return lanes

    def groups_of_four(self) -> Tensor:
        """Return the lanes of kernels for 2 bits: each group of four blocks b is summed as (b0 + b2) + (b1 + b3) first.

        Blocks of 32 fill half of a register.  The other half adds 0 s_x s_w, which is NaN if s_x s_w overflows.
        """
        one = torch.arange(self.block, device=self.rows.device).reshape(-1, min(self.block // _DOT, _LANES), _DOT)
        one = one.movedim(0, 1).flatten(1)
        lanes = self.rows.new_zeros(len(one), len(self.rows), len(self.columns))
        for first in range(0, self.blocks, 4):
            pair = [torch.zeros_like(lanes)] * 2
            for b in range(first, min(first + 4, self.blocks)):
                sums, scales = self.sums(one + b * self.block)
                pair[b % 2] = fma(sums, scales, pair[b % 2])
                if len(lanes) < _LANES:
                    pair[b % 2] = torch.where(scales.isinf(), torch.nan, pair[b % 2])
            lanes = lanes + (pair[0] + pair[1])
        return lanes

    def sums(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of products over places [lanes, n] along K and their scales s_x s_w, each [lanes, M, N]."""
        dots = torch.bmm(self.rows[:, places].movedim(1, 0), self.columns[:, places].permute(1, 2, 0))
        block = places[:, 0] // self.block
        return dots, self.row_scales.T[block, :, None] * self.column_scales.T[block, None]


def _interleaved(block: int) -> Tensor:
    # The places of each lane among the 128 codes of two registers: two dots of one register, which is chosen by pairs of lanes
    # (16, 32) or by single lanes (64); or the same dot of both.
    lane = torch.arange(_LANES)
    if block >= _STEP:
        starts = torch.stack([lane * _DOT, lane * _DOT + _STEP // 2], 1)
    else:
        quarter, r = lane // 4 * 4, lane % 4
        register, dot = (r // 2, r % 2) if block <= 32 else (r % 2, r // 2)
        first = register * (_STEP // 2) + (quarter + dot) * _DOT
        starts = torch.stack([first, first + 2 * _DOT], 1)
    return (starts[..., None] + torch.arange(_DOT)).flatten(1)


def _halved(lanes: Tensor) -> Tensor:
    return lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]


def _by_halves(lanes: Tensor) -> Tensor:
    while len(lanes) > 1:
        lanes = _halved(lanes)
    return lanes[0]


def _total(lanes: Tensor, block: int, bits: int) -> Tensor:
    # The sum of the lanes.  Tiles of four columns may add each four neighbours in order first; those of two rows do so for
    # blocks of 16 and 32, and of 64 with 8 bits, that of a last single row always.
    halves = _by_halves(lanes)
    if bits == 2:
        return halves
    quarters = ((lanes[0::4] + lanes[1::4]) + lanes[2::4]) + lanes[3::4]
    m, n = halves.shape
    in_pair = torch.arange(m, device=lanes.device)[:, None] < m // 2 * 2
    paired = block <= 32 or (block == 64 and bits == 8)
    tiled = (torch.arange(n, device=lanes.device) < n // 4 * 4) & (~in_pair | paired)
    return torch.where(tiled, _by_halves(quarters), halves)
