"""Attention to a cache of keys and values in codes, in the order of sums of ONNX Runtime's GroupQueryAttention."""

from __future__ import annotations

import math

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.arithmetic.computation import Computation, Real
from qfunc.arithmetic.unit import UnitSpec
from qfunc.numerics.kernels.integer import fma
from qfunc.numerics.written_codes import append_codes
from qfunc.specs._check import integer
from qfunc.specs._values import readable
from qfunc.targets.onnxruntime.mlas import softmax_of_seen

_LANES, _BLOCK = 16, 2**21


@readable
@frozen
class AppendCodes:
    """Codes of keys or values are written into a cache at their positions; later positions get the code `unwritten`.

    q = clamp(R(x (1 / s))) of the new entries.  It computes an `index_put` into a tensor [N, h, L, D].

    Source: ONNX Runtime, contrib_ops/cpu/bert/gqa_attention_base.h and mlas/lib/qkv_quant.cpp.

    >>> AppendCodes(-8)
    AppendCodes(-8)
    """

    unwritten: int = field(default=0, validator=integer())

    @property
    def quantizes_new(self) -> bool:
        """True: the operator of the cache rounds the new entries, from their real values."""
        return True

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of a cache with new entries."""
        if unit.kind != "index_put":
            raise unit.unfit(self, ("index_put",))
        cache, new = unit.coded_inputs
        places = (unit.arguments["dim"], unit.arguments["index"])
        return Computation(append_codes, (cache, *places, new, self.unwritten))


@readable
@frozen
class CachedAttention:
    """y = softmax(f q k^T) v in float32, of real queries and of keys and values in codes, up to the position of each query.

    A score is a sum in sixteen lanes of fused multiply-adds, even and odd groups of sixteen entries for themselves; the lanes
    are added by halves.  The softmax is that of the keys that a query sees.  The result adds p v one key after the other, by
    fused multiply-adds.  Sums of codes of 8 bits are multiplied by the scale, codes of 4 bits before they are added.

    No sum depends on the number of queries, or of threads: a prompt and its tokens one by one have the same bits.

    Source: ONNX Runtime, contrib_ops/cpu/bert/gqa_attention_base.h, ApplyAttentionQuantized;
        mlas/lib/qkv_quant_kernel_avx512vnni.cpp.

    >>> CachedAttention()
    CachedAttention()
    """

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the real results of attention to keys and values in codes."""
        if unit.kind != "cached_attention":
            raise unit.unfit(self, ("cached_attention",))
        query, keys, values, positions, factor = (
            unit.arguments[name] for name in ("query", "key", "value", "positions", "factor")
        )
        how = ((keys.coding.scale, values.coding.scale), keys.coding.format.bits < 8)
        return Computation(cached_attention_of_codes, (Real(query), keys, values, positions, factor, *how))


def cached_attention_of_codes(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    factor: float,
    scales: tuple[float, float],
    scaled_before: bool,
) -> Tensor:
    """Return softmax(f q k^T) v over the keys up to the position of each query, in float32.

    q [N, H, T, D] is real; keys and values [N, h, L, D] are codes, and 16 divides D.  Head i of the queries reads head i h / H
    of the keys.

    A score adds in sixteen lanes, by fused multiply-adds, even and odd groups of sixteen entries for themselves; the lanes are
    added by halves.  The softmax is that of the seen scores alone.  A result adds p v key after key.  Codes become real values
    before they are multiplied if `scaled_before`, as those of 4 bits; else the sums are multiplied by the scale.

    No sum depends on the number of queries or threads.

    Source: ONNX Runtime, contrib_ops/cpu/bert/gqa_attention_base.h, ApplyAttentionQuantized;
        mlas/lib/qkv_quant_kernel_avx512vnni.cpp; measured on onnxruntime 1.31.

    >>> one, codes = torch.ones(1, 1, 1, 16), torch.full((1, 1, 2, 16), 3.0)
    >>> cached_attention_of_codes(one, codes, codes, torch.tensor([[1]]), 1.0, (1.0, 1.0), False)[0, 0, 0, 0]
    tensor(3.)
    """
    seen = int(positions.max()) + 1 if positions.numel() else 0
    keys, values = (c[:, :, :seen].float().repeat_interleave(query.shape[1] // c.shape[1], 1) for c in (keys, values))
    f, of_keys, of_values = torch.tensor([factor, *scales], dtype=torch.float32, device=query.device)
    place = torch.arange(seen, device=query.device)
    size, found = max(1, _BLOCK // max(1, _LANES * math.prod(keys.shape[:3]))), list[Tensor]()
    for q, at in zip(torch.split(query.float(), size, 2), torch.split(positions, size, 1), strict=True):
        scores = f * _scores(q, keys, of_keys, scaled_before)
        weights = softmax_of_seen(scores, place <= at[:, None, :, None])
        found.append(_mixed(weights, values, of_values, scaled_before))
    return torch.cat(found, 2)


def _scores(query: Tensor, codes: Tensor, scale: Tensor, scaled_before: bool) -> Tensor:
    # [N, H, T, D] and [N, H, L, D] -> [N, H, T, L]
    q, k = query[:, :, :, None], (codes * scale if scaled_before else codes)[:, :, None]
    lanes = torch.zeros(*query.shape[:3], codes.shape[2], _LANES, device=query.device)
    sums, groups = [lanes, lanes], codes.shape[-1] // _LANES
    for n in range(groups):
        at, side = slice(n * _LANES, (n + 1) * _LANES), n % 2 if n < groups // 2 * 2 else 0
        sums[side] = fma(q[..., at], k[..., at], sums[side])
    total = sums[0] + sums[1]
    while total.shape[-1] > 1:
        half = total.shape[-1] // 2
        total = total[..., :half] + total[..., half:]
    return total[..., 0] if scaled_before else total[..., 0] * scale


def _mixed(weights: Tensor, codes: Tensor, scale: Tensor, scaled_before: bool) -> Tensor:
    # [N, H, T, L] and [N, H, L, D] -> [N, H, T, D]
    v = codes * scale if scaled_before else codes
    total = torch.zeros(*weights.shape[:3], codes.shape[-1], device=weights.device)
    for k in range(codes.shape[2]):
        total = fma(weights[..., k, None], v[:, :, k, None], total)
    return total if scaled_before else total * scale
