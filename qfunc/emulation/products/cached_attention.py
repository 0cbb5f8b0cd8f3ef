"""Emulate attention to a cache in codes, and the writes into it."""

from __future__ import annotations

from torch import fx

from qfunc.emulation.context import UnitContext
from qfunc.numerics.sums.cached_attention import append_codes, cached_attention_of_codes
from qfunc.ops.node import attribute, slots
from qfunc.specs import AppendCodes, CachedAttention

__all__ = ["append", "attend"]


def append(job: UnitContext, arithmetic: AppendCodes) -> fx.Node:
    """Return the node of a cache with new codes."""
    (_, cache), (_, new) = slots(job.root)
    places = (job.argument("dim"), job.argument("index"))
    return job.emitter.call(
        append_codes, job.codes(cache).node, *places, job.codes(new).node, arithmetic.unwritten, name=job.name, result=True
    )


def attend(job: UnitContext, _: CachedAttention) -> fx.Node:
    """Return the node of real results of attention to keys and values in codes."""
    keys, values = (job.codes(attribute(job.root, name)) for name in ("key", "value"))
    query = job.real(attribute(job.root, "query"), job.root)
    return job.emitter.call(
        cached_attention_of_codes, query, keys.node, values.node, job.argument("positions"), job.argument("factor"),
        (keys.encoding.scale, values.encoding.scale), keys.encoding.format.bits < 8, name=job.name, result=True,
    )  # fmt: skip
