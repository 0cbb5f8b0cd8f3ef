"""Count what a comparison covers: multiply-accumulates, and the units whose results were not compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set

from torch import Size, fx

from qfunc.graph.arguments import unflatten
from qfunc.ops.definition import Trait
from qfunc.ops.node import has, kind_of, slots
from qfunc.placement.partition import Partition, Unit

__all__ = ["multiply_accumulates", "uncompared"]


def multiply_accumulates(partition: Partition, shapes: Mapping[str, Size]) -> dict[str, int]:
    """Return the products that each unit sums, by the path of its output; units without products are left out.

    Args:
        partition: The units.
        shapes: The shapes of tensors by the names of nodes.
    """
    counts: dict[str, int] = {}
    for unit in partition.units:
        total = sum(_products(node, shapes) for node in unit.group.nodes)
        if total:
            counts[unit.tensor] = counts.get(unit.tensor, 0) + total
    return counts


def _products(node: fx.Node, shapes: Mapping[str, Size]) -> int:
    operands = slots(node)
    x = next((n for slot, n in operands if slot == "input"), None)
    weight = next((n for slot, n in operands if slot == "weight"), None)
    result = shapes.get(node.name)
    if result is None or x is None or x.name not in shapes:
        return 0
    if weight is not None and weight.name in shapes and has(node, Trait.WEIGHTED):
        of_one = math.prod(shapes[weight.name][1:])
        return (math.prod(shapes[x.name]) if kind_of(node) == "conv_transpose" else math.prod(result)) * of_one
    if kind_of(node) == "matmul":
        return math.prod(result) * shapes[x.name][-1]
    return 0


def uncompared(partition: Partition, compared: Set[str], shown: Set[str] | None) -> Iterator[tuple[str, str]]:
    """Yield (path of the output, reason) for each integer unit whose result was not compared.

    Args:
        partition: The units.
        compared: The paths of the compared tensors.
        shown: The names of the tensors that the runtime shows, or None if it shows its outputs only.
    """
    output = next(n for n in partition.network.graph.nodes if n.op == "output")
    outputs = {n for n in unflatten(output) if isinstance(n, fx.Node)}
    for unit in partition.units:
        if unit.integer and unit.tensor not in compared and unit.group.output not in outputs:
            yield unit.tensor, _reason(partition, unit, shown)


def _reason(partition: Partition, unit: Unit, shown: Set[str] | None) -> str:
    if shown is None:
        return "the runtime shows its outputs only"
    if partition.output_encoding(unit.group.output) is None:
        return "its result is real, and the runtime shows codes only"
    if f"{unit.tensor}.codes" in shown:
        return "the emulation keeps no codes of it"
    return "the runtime shows no tensor of this name"
