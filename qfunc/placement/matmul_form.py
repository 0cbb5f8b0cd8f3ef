"""How a runtime computes a product of two real tensors: with a number that it fuses, and with an operand stored transposed."""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen
from torch import fx

from qfunc.graph.selectors import Context
from qfunc.ops.node import attribute
from qfunc.placement.fusion import FusedGroup

__all__ = ["MatmulForm", "matmul_form"]


@frozen
class MatmulForm:
    """The number that a product is multiplied by, as a runtime fuses it, and whether its second operand is transposed.

    `by_width` is True for 1 / sqrt(width of the first operand), which is `factor` then.
    """

    transposed: bool
    factor: float | None = None
    by_width: bool = False


def matmul_form(group: FusedGroup, context: Context) -> MatmulForm | None:
    """Return the form of a matmul and of what is fused with it, or None if it cannot be known from the graph.

    ONNX Runtime reads an operand whose last two axes were swapped, or whose first axis became the last, without moving it.
    """
    step = group.nodes[1] if len(group.nodes) > 1 else None
    if len(group.nodes) > 2 or (step is not None and not _is_number_scaling(step, context)):
        return None
    if step is not None:
        factor = _factor(step, context)
        return MatmulForm(False, factor, by_width=factor is None)
    first, second = (attribute(group.root, name) for name in ("input", "other"))
    swapped = [_is_transposed(n, context) for n in (first, second)]
    return None if swapped[0] is not False or swapped[1] is None else MatmulForm(swapped[1])


def _is_number_scaling(node: fx.Node, context: Context) -> bool:
    if context.kind(node) == "scale":
        return True
    other = attribute(node, "other")
    return context.kind(node) in ("mul", "div") and type(other) in (int, float) and not node.kwargs


def _factor(node: fx.Node, context: Context) -> float | None:
    if context.kind(node) == "scale":
        factor = attribute(node, "factor")
        return None if factor is None else float(factor)
    number = float(attribute(node, "other"))
    return number if context.kind(node) == "mul" else float(1 / torch.tensor(number, dtype=torch.float32))


def _is_transposed(node: Any, context: Context) -> bool | None:
    # What successive transposes do together: True if the last two axes are swapped or the first becomes the last.
    chain = []
    while isinstance(node, fx.Node) and context.kind(node) == "transpose":
        chain.append(node)
        node = attribute(node, "input")
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
