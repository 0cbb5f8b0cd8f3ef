"""Fuse attention to a cache into one op, for engines that hold the cache in codes of their own."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.errors import CaptureError
from qfunc.graph.record import path_of, record_of
from qfunc.ops.attention import cached_attention
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, has, kind_of
from qfunc.passes.decompose_attention import names_kind
from qfunc.passes.match_masks import LOW
from qfunc.specs import CachedAttention, Target

__all__ = ["fuse_cached_attention"]

_LANES = 16
_ROWS, _TOKENS = 2, 3
_DO = "Hold the cache in codes by edit.state() instead, whose attention is that of the model."


def fuse_cached_attention(network: fx.GraphModule, target: Target) -> fx.GraphModule:
    """Replace each `sdpa` of a cache that the network writes by `cached_attention`, in place, if a kernel of the target has it.

    What the op would compute otherwise than the model is found by values: keys and values must be the written cache, with its
    heads repeated, and the mask must show the keys up to the position of each query.

    Raises:
        CaptureError: a cache that is read in another way.
    """
    if not any(isinstance(k.arithmetic, CachedAttention) and names_kind(k.unit, "cached_attention") for k in target.kernels):
        return network
    writes = [n for n in network.graph.nodes if kind_of(n) == "index_put" and attribute(n, "input").op == "placeholder"]
    reads = {n: _Read.of(network, n) for n in network.graph.nodes if kind_of(n) == "sdpa"}
    found = {n: read for n, read in reads.items() if read is not None}
    for write in writes:
        readers = [n for n, read in found.items() if write in (read.keys, read.values)]
        if len(readers) != 1:
            raise _refused(network, write, f"a cache that {len(readers) or 'no'} calls of scaled_dot_product_attention read")
    for node, read in found.items():
        if reason := read.unlike(network, node):
            raise _refused(network, node, reason)
        positions, factor = read.positions, attribute(node, "scale")
        node.args = (
            attribute(node, "query"), read.keys, read.values, positions, read.width**-0.5 if factor is None else float(factor),
        )  # fmt: skip
        node.target = cached_attention
    network.graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))
    network.recompile()
    return network


def _refused(network: fx.GraphModule, node: fx.Node, found: str) -> CaptureError:
    wanted = "causal attention of one sdpa to the whole cache of qfunc.decoder, as GroupQueryAttention computes it"
    return CaptureError(where=f"op {path_of(network, node)!r}", found=found, wanted=wanted, do=_DO)


@frozen(eq=False)
class _Read:
    """Keys and values that attention reads, the positions at which they were written, and the cache's shape."""

    keys: fx.Node
    values: fx.Node
    positions: fx.Node
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        return self.shape[-1]

    @classmethod
    def of(cls, network: fx.GraphModule, node: fx.Node) -> _Read | None:
        """Return the read of a cache, or None for other attention."""
        keys, values = (_written(attribute(node, name)) for name in ("key", "value"))
        record = record_of(network)
        if keys is None or values is None or record is None:
            return None
        positions = _moved_from(attribute(keys, "index"))
        inputs = [n for n in network.graph.nodes if n.op == "placeholder"]
        sizes = dict(zip(inputs, (shape for _, shape in record.sizes), strict=False))
        shape = sizes.get(attribute(keys, "input"), ())
        if positions.op != "placeholder" or len(shape) != 4 or any(d is None for d in shape[1:]):
            return None
        return cls(keys, values, positions, tuple(d or 0 for d in shape))

    def unlike(self, network: fx.GraphModule, node: fx.Node) -> str:
        """Return what attention computes otherwise than the op, or ""."""
        mask, (_, heads, length, width) = attribute(node, "attn_mask"), self.shape
        if attribute(node, "dropout_p") or attribute(node, "is_causal") or not isinstance(mask, fx.Node):
            return "attention without a mask of positions"
        if width % _LANES:
            return f"heads of {width} channels, which {_LANES} does not divide"
        cache = torch.randn(_ROWS, heads, length, width, generator=torch.Generator().manual_seed(0))
        # Rows from the start, at the end, and out of order, as a prompt with padding on the left has them.
        for rows in ([[0, 1, 2], [length - 3, length - 2, length - 1]], [[1, 2, 0], [length - 1, 0, 1]]):
            places = torch.tensor(rows)
            known = {n: torch.zeros(_ROWS, _TOKENS, dtype=torch.int64) for n in network.graph.nodes if n.op == "placeholder"}
            known |= {self.positions: places, self.keys: cache, self.values: cache}
            for name, written in (("key", self.keys), ("value", self.values)):
                read = _value(network, attribute(node, name), known)
                times = read.shape[1] // heads
                if read.shape[1] % heads or not torch.equal(read, cache.repeat_interleave(times, 1)):
                    return f"a {name} that is not the cache with its heads repeated"
                index = _value(network, attribute(written, "index"), known)
                if not torch.equal(index, places[:, None, :, None].expand(_ROWS, heads, _TOKENS, width)):
                    return f"a {name} at other places than its position"
            if not _shows(_value(network, mask, known), torch.arange(length) <= places[:, None, :, None]):
                return "a mask that does not show the keys up to each query's position, such as a sliding window"
        return ""


def _shows(mask: Tensor, seen: Tensor) -> bool:
    # True if a mask shows these keys, and no others.
    mask, seen = torch.broadcast_tensors(mask, seen)
    if mask.dtype == torch.bool:
        return torch.equal(mask, seen)
    return bool((mask[seen] == 0).all()) and bool((mask[~seen] <= LOW).all())


def _written(node: Any) -> fx.Node | None:
    # The write into an input of the network whose result is moved to a node.
    source = _moved_from(node)
    if kind_of(source) != "index_put" or attribute(source, "input").op != "placeholder":
        return None
    return source


def _moved_from(node: fx.Node) -> fx.Node:
    while has(node, Trait.MOVES_VALUES) and kind_of(node) != "index_put" and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _value(network: fx.GraphModule, node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    """Return the value of a node, given those of inputs."""
    values, pending = dict(known), [node]
    while pending:
        current = pending[-1]
        unknown = [n for n in current.all_input_nodes if n not in values]
        if current not in values and unknown:
            pending += unknown
            continue
        pending.pop()
        if current not in values:
            values[current] = _computed(network, current, values)
    return values[node]


def _computed(network: fx.GraphModule, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    if node.op == "get_attr":
        return reduce(getattr, str(node.target).split("."), network)
    arguments = fx.map_arg(node.args, values.__getitem__)
    with torch.no_grad():
        return node.target(*arguments, **node.kwargs)  # type: ignore[operator]
