"""Prove from a graph that a tensor has no negative value."""

from __future__ import annotations

from typing import Any

from torch import fx

from qfunc.graph.context import Context, arguments
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, kind_of, op_of


def non_negative(node: fx.Node, context: Context) -> bool:
    """Return True if the graph proves that a tensor has no negative value.

    Each node is examined once in a context, without recursion, because networks may be deep.
    """
    known, pending = context.signs, [node]
    while pending:
        current = pending[-1]
        conditions = [] if current in known else _conditions(current, context)
        unknown = [n for n in conditions if isinstance(n, fx.Node) and n not in known]
        failed = any(known.get(n) is False if isinstance(n, fx.Node) else not n for n in conditions)
        if unknown and not failed:
            pending.append(unknown[0])
            continue
        known.setdefault(current, not failed)
        pending.pop()
    return known[node]


def _conditions(node: fx.Node, context: Context) -> list[Any]:
    # Return what must hold so that a tensor is not negative: booleans, and tensors that must not be negative.
    if context.has(node, Trait.NON_NEGATIVE):
        return []
    match kind_of(node):
        case "clip":
            return [(attribute(node, "min") or -1) >= 0 or attribute(node, "min") == 0]
        case "pad" if attribute(node, "mode") == "constant":
            return [(attribute(node, "value") or 0) >= 0, attribute(node, "input")]
        case "pad":
            return [attribute(node, "input")]
        case "resize":  # bicubic weights are negative beyond the neighbours
            return [attribute(node, "mode") != "bicubic", attribute(node, "input")]
    if not context.has(node, Trait.KEEPS_SIGN):
        return [False]
    op = op_of(node)
    if op is None:
        user_op = context.user_op(node)
        given: list[Any] = [n for slot, n in context.slots(node) if slot == "input"]
        given += [] if user_op is None else [v for n, v in arguments(user_op, node) if user_op.slot(n) in ("input", "operand")]
    else:
        read = [v for n, v in zip(op.parameters, node.args, strict=True) if op.slots.get(n) in ("input", "operand")]
        given = [entry for v in read for entry in (v if isinstance(v, list | tuple) else (v,))]
    tensors = [v for v in given if isinstance(v, fx.Node)]
    return [bool(tensors), *(v >= 0 for v in given if isinstance(v, int | float)), *tensors]


__all__ = ["non_negative"]
