"""Fuse attention to a cache into one op, for engines that hold the cache in codes of their own."""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.errors import CaptureError
from qfunc.graph.evaluation_form import evaluate
from qfunc.graph.record import path_of, record_of
from qfunc.graph.selectors import names_kind
from qfunc.ops.attention import cached_attention
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, has, kind_of
from qfunc.passes.match_masks import LOW
from qfunc.specs import Target

_LANES = 16
_ROWS, _TOKENS = 2, 3


def fuse_cached_attention(network: fx.GraphModule, target: Target) -> fx.GraphModule:
    """Replace each `sdpa` of a cache that the network writes by `cached_attention`, in place, if a kernel of the target has it.

    Whether that is the same is found by values: keys and values must be the written cache with its heads repeated, and the mask
    must show the keys up to the position of each query.

    Raises:
        CaptureError: a cache that is read in another way.
    """
    if not any(names_kind(k.unit, "cached_attention") for k in target.kernels):
        return network
    calls = [n for n in network.graph.nodes if kind_of(n) == "sdpa"]
    reads = {call: read for call in calls if (read := _read(network, call)) is not None}
    for write in [n for n in network.graph.nodes if _writes_state(n)]:
        readers = [call for call, read in reads.items() if write in (read.keys, read.values)]
        if len(readers) != 1:
            found = f"a cache that {len(readers) or 'no'} calls of scaled_dot_product_attention read"
            raise _refused(network, write, found, "Drop" if readers else _USE_SDPA)
        if not _path(write, readers[0]).issuperset(write.users):
            raise _refused(network, write, "a cache that is also read outside of scaled_dot_product_attention")
    for call, read in reads.items():
        if found := _difference(network, call, read):
            raise _refused(network, call, found)
        scale = attribute(call, "scale")
        factor = read.shape[-1] ** -0.5 if scale is None else float(scale)
        call.args, call.target = (attribute(call, "query"), read.keys, read.values, read.positions, factor), cached_attention
    network.graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))
    network.recompile()
    return network


_USE_SDPA = 'Load a model of transformers with attn_implementation="sdpa", or drop'


def _refused(network: fx.GraphModule, node: fx.Node, found: str, do: str = "Drop") -> CaptureError:
    wanted = "one causal scaled_dot_product_attention to the whole cache of a qfunc.decoder, as GroupQueryAttention is"
    do += " cache_bits; edit.state() holds a cache in codes for any attention."
    return CaptureError(where=f"op {path_of(network, node)!r}", found=found, wanted=wanted, do=do)


@frozen(eq=False)
class _Read:
    """The writes of keys and values that attention reads, their positions, and the sizes of the cache, [N, h, L, D]."""

    keys: fx.Node
    values: fx.Node
    positions: fx.Node
    shape: tuple[int, ...]


def _read(network: fx.GraphModule, call: fx.Node) -> _Read | None:
    keys, values = (_source(attribute(call, name)) for name in ("key", "value"))
    record = record_of(network)
    if not (_writes_state(keys) and _writes_state(values)) or record is None:
        return None
    positions = _source(attribute(keys, "index"))
    inputs = [n for n in network.graph.nodes if n.op == "placeholder"]
    sizes = dict(zip(inputs, (shape for _, shape in record.sizes), strict=False))
    shape = tuple(d or 0 for d in sizes.get(attribute(keys, "input"), ()))
    if positions.op != "placeholder" or len(shape) != 4 or 0 in shape[1:]:
        return None
    return _Read(keys, values, positions, shape)


def _writes_state(node: fx.Node) -> bool:
    return kind_of(node) == "index_put" and attribute(node, "input").op == "placeholder"


def _source(node: fx.Node) -> fx.Node:
    # The node whose values are moved to this one.
    while has(node, Trait.MOVES_VALUES) and kind_of(node) != "index_put" and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _path(write: fx.Node, call: fx.Node) -> set[fx.Node]:
    # Attention, the ops between a write and it, and the output of the model.
    found = {call, *(n for n in write.graph.nodes if n.op == "output")}
    for name in ("key", "value"):
        node = attribute(call, name)
        while node is not write and has(node, Trait.MOVES_VALUES) and kind_of(node) != "index_put":
            found.add(node)
            node = node.args[0]
    return found


def _difference(network: fx.GraphModule, call: fx.Node, read: _Read) -> str:
    # What attention computes otherwise than the op, or "".
    mask, (_, heads, length, width) = attribute(call, "attn_mask"), read.shape
    if attribute(call, "dropout_p") or attribute(call, "is_causal") or not isinstance(mask, fx.Node):
        return "attention without a mask of positions"
    if read.keys is read.values:
        return "keys and values that are one tensor"
    if width % _LANES:
        return f"heads of {width} channels, which {_LANES} does not divide"
    cache = torch.randn(_ROWS, heads, length, width, generator=torch.Generator().manual_seed(0))
    inputs = [n for n in network.graph.nodes if n.op == "placeholder"]
    for first in (0, length - _TOKENS):
        places = torch.arange(first, first + _TOKENS).expand(_ROWS, _TOKENS)
        known: dict[fx.Node, Any] = {n: torch.zeros(_ROWS, _TOKENS, dtype=torch.int64) for n in inputs}
        known |= {read.positions: places, read.keys: cache, read.values: cache}
        for name, write in (("key", read.keys), ("value", read.values)):
            given = evaluate(network, attribute(call, name), known)
            if given.shape[1] % heads or not torch.equal(given, cache.repeat_interleave(given.shape[1] // heads, 1)):
                return f"a {name} that is not the cache with its heads repeated"
            index = evaluate(network, attribute(write, "index"), known)
            if not torch.equal(index, places[:, None, :, None].expand(_ROWS, heads, _TOKENS, width)):
                return f"a {name} written at other places than its position"
        if not _shows(evaluate(network, mask, known), torch.arange(length) <= places[:, None, :, None]):
            return "a mask that does not show the keys up to each query's position, such as a sliding window"
    return ""


def _shows(mask: Tensor, seen: Tensor) -> bool:
    # True if a mask shows these keys, and no others.
    if mask.dtype == torch.bool:
        return bool((mask == seen).all())
    return bool((torch.where(seen, mask == 0, mask <= LOW)).all())
