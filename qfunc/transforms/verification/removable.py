"""Units that change no code, so that a runtime may omit them."""

from __future__ import annotations

from typing import Any

from torch import fx

from qfunc.graph.constants import computable, value_of
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, op_of
from qfunc.ops.sizes import is_number
from qfunc.placement.kernels import clamps_nothing
from qfunc.placement.partition import Partition
from qfunc.placement.units import Unit
from qfunc.specs import Copy


def is_removable(partition: Partition, unit: Unit) -> bool:
    """Return True if a runtime may omit a unit, because the unit changes no code.

    Such units are casts, ops that only move codes, ops of constants, a Relu or Clip that changes no code before or
    after it, and arithmetic with a neutral number or constant, also if such a Relu follows.
    """
    node = unit.group.root
    moves = unit.kernel is not None and isinstance(unit.kernel.arithmetic, Copy)
    if unit.kind == "cast" or moves or node in partition.constants:
        return True
    if partition.context.has(node, Trait.CLAMPS):
        before = partition.encoding(node.args[0], node) if node.args and isinstance(node.args[0], fx.Node) else None
        after = [partition.encoding(node, reader) for reader in node.users]
        return any(e is not None and clamps_nothing(node, e, partition.context) for e in (before, *after[:1]))
    output = partition.output_encoding(unit.group.output)
    rest = unit.group.nodes[1:]
    inside = not rest or (output is not None and all(clamps_nothing(n, output, partition.context) for n in rest))
    return inside and _is_identity(node, partition)


def _is_identity(node: fx.Node, partition: Partition) -> bool:
    # x + 0, 0 + x, x - 0, x * 1, 1 * x, x / 1, and x / x.size(1), whose size may be 1, as that of the width of attention
    context = partition.context
    if context.kind(node) == "scale":
        return attribute(node, "factor") in (None, 1)
    op = op_of(node) or context.user_op(node)
    if op is None or op.neutral is None:
        return False
    operands = node.args if context.has(node, Trait.COMMUTATIVE) else node.args[1:]
    return any(_is_neutral(a, op.neutral, node, partition) for a in operands)


def _is_neutral(operand: Any, neutral: float, reader: fx.Node, partition: Partition) -> bool:
    if is_number(operand):
        return isinstance(operand, fx.Node) or bool(operand == neutral)
    if not isinstance(operand, fx.Node) or partition.encoding(operand, reader) is not None:
        return False
    return operand in computable(reader.graph) and bool((value_of(partition.network, operand, {}) == neutral).all())
