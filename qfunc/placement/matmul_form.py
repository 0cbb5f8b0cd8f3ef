"""How a runtime computes a product of two real tensors: with a number that it fuses, and with an operand stored transposed."""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen
from torch import fx

from qfunc.graph.selectors import Context
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute
from qfunc.ops.sizes import is_number
from qfunc.placement.fusion import FusedGroup

__all__ = ["MatmulForm", "matmul_form"]


@frozen
class MatmulForm:
    """What a runtime makes of a product: whether its second operand is transposed, and the number that it fuses.

    The number is `factor`, or its float32 reciprocal if it `divides`; a node computes it from sizes.  `by_width` stands for
    1 / sqrt(width of the first operand).
    """

    transposed: bool = False
    factor: float | fx.Node | None = None
    divides: bool = False
    by_width: bool = False


def matmul_form(group: FusedGroup, context: Context) -> MatmulForm | None:
    """Return the form of a matmul and of what is fused with it, or None if it cannot be known from the graph.

    ONNX Runtime reads an operand whose last two axes were swapped, or whose first axis became the last, without moving it.
    Numbers that are computed from sizes count as constants, as which they are written if no axis of them varies.
    """
    if len(group.nodes) > 1:
        return _with_factor(group.nodes[1], context) if len(group.nodes) == 2 else None
    first, second = (_is_transposed(attribute(group.root, name), context) for name in ("input", "other"))
    return None if first is not False or second is None else MatmulForm(second)


def _with_factor(step: fx.Node, context: Context) -> MatmulForm | None:
    if context.kind(step) == "scale":
        factor = attribute(step, "factor")
        return MatmulForm(factor=factor, by_width=factor is None)
    number = attribute(step, "other")
    known = type(number) in (int, float) or (isinstance(number, fx.Node) and is_number(number))
    return MatmulForm(factor=number, divides=context.kind(step) == "div") if known and not step.kwargs else None


def _is_transposed(node: Any, context: Context) -> bool | None:
    # What successive transposes do together: True if the last two axes are swapped or the first becomes the last.
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
