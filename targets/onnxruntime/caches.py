"""Attention to a cache of keys and values that the operator itself holds in codes."""

from __future__ import annotations

from attrs import field, frozen

from qfunc.arithmetic.computation import Computation, Real
from qfunc.arithmetic.unit import UnitSpec
from qfunc.numerics.written_codes import append_codes
from qfunc.specs._check import integer
from qfunc.specs._values import readable
from qfunc.targets.onnxruntime.attention import cached_attention_of_codes


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


__all__ = ["AppendCodes", "CachedAttention"]
