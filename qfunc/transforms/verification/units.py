"""Compare the units that a partition predicts with the ops that a runtime executed, and list the units not compared.

A runtime may omit units that change no code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

import torch
from torch import fx

from qfunc.analysis.lockstep import Ops
from qfunc.analysis.operations.multiply_accumulates import multiply_accumulates
from qfunc.graph.arguments import unflatten
from qfunc.graph.constants import computable, value_of
from qfunc.graph.data_movement import only_moves_codes
from qfunc.ops.indexing import element
from qfunc.ops.node import attribute, op_of, returns_several, slots
from qfunc.ops.sizes import is_number
from qfunc.ops.traits import Trait
from qfunc.placement.kernels import clamps_nothing
from qfunc.placement.partition import Partition
from qfunc.placement.units import INNER_PREFIX, Unit
from qfunc.specs import Copy, FloatKernel


def summed_products(partition: Partition, arguments: tuple[Any, ...]) -> dict[str, int]:
    """Return the number of products that each unit sums for these arguments, by the path of its output."""
    with torch.inference_mode():
        counts = {n.name: c for n, c in multiply_accumulates(Ops(partition.network), arguments).items()}
    found: dict[str, int] = {}
    for unit in partition.units:
        if total := sum(counts.get(n.name, 0) for n in unit.group.nodes):
            found[unit.tensor] = found.get(unit.tensor, 0) + total
    return found


def wrong_predictions(partition: Partition, actual: Mapping[str, str], compared: Set[str]) -> Iterator[str]:
    """Yield a line for each unit that the runtime does not execute as the partition predicts.

    Args:
        partition: The units.
        actual: "integer", "float" or "gone" by the names of tensors and ops in the artifact.
        compared: The paths of the tensors whose codes were compared.
    """
    for unit in partition.units:
        coded = partition.output_encoding(unit.group.output) is not None
        state = _state(unit, actual, coded)
        predicted = "integer" if unit.integer else "float"
        if state == "gone":
            if not is_removable(partition, unit):
                yield f"{unit.path}: predicted {predicted}, but the runtime has no such op"
        elif state is None:
            if unit.integer and not returns_several(unit.group.root):  # its values are compared where they are read
                yield f"{unit.path}: predicted integer, but its codes are not in the artifact"
        elif unit.integer != (state == "integer") and not (state == "integer" and _moves_before_quantizer(partition, unit)):
            yield f"{unit.path}: predicted {predicted}, but the runtime runs it as {state}"
        elif unit.integer and coded and unit.tensor not in compared:
            yield f"{unit.path}: its codes were not compared"


def wrong_executions(partition: Partition, executed: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each unit that the runtime shows and does not compute as the partition predicts.

    A FloatKernel computes in float between dequantize and quantize, and a value that is only moved has the same codes whether
    it is quantized before or after the move: such units are right either way.

    Args:
        partition: The units.
        executed: "integer" or "float" by the names of tensors of codes.
    """
    for unit in partition.units:
        state = next((executed[n] for n in _code_names(unit) if n in executed), None)
        in_float = unit.kernel is not None and isinstance(unit.kernel.arithmetic, FloatKernel)
        if state is None or in_float or unit.integer == (state == "integer"):
            continue
        if unit.integer or not partition.context.has(unit.group.root, Trait.MOVES_VALUES):
            yield f"{unit.path}: predicted {'integer' if unit.integer else 'float'}, but the runtime runs it as {state}"


def _code_names(unit: Unit) -> list[str]:
    # If an op is written with its own quantizer and a move after it, the state of the op counts, not that of the move.
    return [f"{unit.tensor}.{INNER_PREFIX}.codes", f"{unit.tensor}.codes"]


def _state(unit: Unit, actual: Mapping[str, str], coded: bool) -> str | None:
    names = _code_names(unit)
    if unit.integer and not coded:  # without codes at its output, the op is found by its own name or that of its rows
        names = [unit.path, f"{unit.path}.rows", *names]
    return next((actual[n] for n in names if n in actual), None)


def _moves_before_quantizer(partition: Partition, unit: Unit) -> bool:
    # A real value that is only moved has the same codes whether it is quantized before or after the move.  A clamp after the
    # move is gone where the range of the codes implies it.
    node = unit.group.root
    while not _reads_codes(partition, node):
        if not partition.context.has(node, Trait.CLAMPS):
            return partition.context.has(node, Trait.MOVES_VALUES) and only_moves_codes(node)
        node = node.all_input_nodes[0]
    return False


def _reads_codes(partition: Partition, node: fx.Node) -> bool:
    return any(partition.encoding(source, node) is not None for slot, source in slots(node) if slot == "input")


def units_not_compared(partition: Partition, compared: Set[str], shown: Set[str] | None) -> Iterator[tuple[str, str]]:
    """Yield (path of the output, reason) for each integer unit whose result was not compared.

    Args:
        partition: The units.
        compared: The paths of the compared tensors.
        shown: The names of the tensors that the runtime shows, or None if it shows its outputs only.
    """
    output = next(n for n in partition.network.graph.nodes if n.op == "output")
    outputs = {n for n in unflatten(output) if isinstance(n, fx.Node)}
    for unit in partition.units:
        known = not compared.isdisjoint(partition.names[node] for node in results(unit))
        if unit.integer and not known and outputs.isdisjoint(results(unit)):
            yield unit.tensor, _why_uncompared(partition, unit, shown)


def compared_exactly(partition: Partition, compared: Set[str], unknown: Set[str]) -> set[str]:
    """Return the paths of the units whose results the comparison reaches bit by bit.

    Those are results that were compared, outputs, and real results of which another such unit computes its own.

    Args:
        partition: The units.
        compared: The paths of the compared tensors.
        unknown: The paths of the results of units without a known arithmetic.
    """
    output = next(n for n in partition.network.graph.nodes if n.op == "output")
    unit_of = {node: unit for unit in partition.units for node in unit.group.nodes}
    found: set[str] = set()
    for unit in reversed(partition.units):
        node = unit.group.output
        real = [reader for reader in node.users if partition.encoding(node, reader) is None]
        onwards = any(reader is output or (reader in unit_of and unit_of[reader].tensor in found) for reader in real)
        known = not compared.isdisjoint(partition.names[each] for each in results(unit))
        if unit.tensor not in unknown and (known or output in node.users or onwards):
            found.add(unit.tensor)
    return found


def results(unit: Unit) -> list[fx.Node]:
    """Return the tensors that a unit computes: its output, or the entries of an output of several that others read."""
    output = unit.group.output
    entries = [reader for reader in output.users if reader.target is element]
    return entries if returns_several(output) else [output]


def _why_uncompared(partition: Partition, unit: Unit, shown: Set[str] | None) -> str:
    if shown is None:
        return "the runtime shows its outputs only"
    if partition.output_encoding(unit.group.output) is None:
        return "its result is real, and the runtime shows codes only"
    if f"{unit.tensor}.codes" in shown:
        return "the emulation keeps no codes of it"
    return "the runtime shows no tensor of this name"


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
