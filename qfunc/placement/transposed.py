"""Whether a product of two real tensors gets a factor that was transposed."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from qfunc.graph.selectors import Context
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute

__all__ = ["is_transposed"]


def is_transposed(node: Any, context: Context) -> bool | None:
    """Return what successive transposes before a product do together, or None if it cannot be known from the graph.

    It is True if they swap the last two axes or make the first axis the last: ONNX Runtime reads such a factor without moving
    it.  False stands for other moves and for none.
    """
    chain = []
    while isinstance(node, fx.Node) and context.kind(node) == "transpose":
        chain.append(node)
        node = attribute(node, "input")
    if _reads_transposed(node, context):
        return None
    if not chain:
        return False
    rank = _rank(node, chain, context)
    if rank is None:
        return None
    axes = list(range(rank))
    for step in reversed(chain):
        if step.target is torch.permute:
            axes = [axes[d] for d in attribute(step, "dims")]
        else:
            a, b = (attribute(step, name) % rank for name in ("dim0", "dim1"))
            axes[a], axes[b] = axes[b], axes[a]
    swapped = [*range(rank - 2), rank - 1, rank - 2]
    return axes in (swapped, [*range(1, rank), 0])


def _reads_transposed(node: Any, context: Context) -> bool:
    # ONNX Runtime moves a transpose after ops of single elements, and combines it with others there.
    pending, seen = [node], set[fx.Node]()
    while pending:
        current = pending.pop()
        if isinstance(current, fx.Node) and current not in seen and context.has(current, Trait.ELEMENTWISE):
            seen.add(current)
            pending += current.all_input_nodes
            if any(context.kind(n) == "transpose" for n in current.all_input_nodes):
                return True
    return False


def _rank(base: Any, chain: list[fx.Node], context: Context) -> int | None:
    # Of the transposes, or of a reshape before them; swaps of the last axes are the same in each rank.
    if any(node.target not in (torch.transpose, torch.permute) for node in chain):
        return None
    for node in chain:
        if node.target is torch.permute:
            return len(attribute(node, "dims"))
    shape = attribute(base, "shape") if isinstance(base, fx.Node) and base.target is torch.reshape else None
    if isinstance(shape, tuple | list):
        return len(shape)
    named = [attribute(node, name) for node in chain for name in ("dim0", "dim1")]
    return 4 if all(type(d) is int and d in (-1, -2) for d in named) else None
