"""Compare the units that a partition predicts with the ops that a runtime executed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from qfunc.graph.data_movement import only_moves_codes
from qfunc.ops.node import returns_several, slots
from qfunc.placement.partition import INNER_PREFIX, Partition, Unit


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
            if not partition.is_removable(unit):
                yield f"{unit.path}: predicted {predicted}, but the runtime has no such op"
        elif state is None:
            if unit.integer and not returns_several(unit.group.root):  # its values are compared where they are read
                yield f"{unit.path}: predicted integer, but its codes are not in the artifact"
        elif unit.integer != (state == "integer") and not (state == "integer" and _moves_before_quantizer(partition, unit)):
            yield f"{unit.path}: predicted {predicted}, but the runtime runs it as {state}"
        elif unit.integer and coded and unit.tensor not in compared:
            yield f"{unit.path}: its codes were not compared"


def _state(unit: Unit, actual: Mapping[str, str], coded: bool) -> str | None:
    # If an op is written with its own quantizer and a move after it, the state of the op counts, not that of the move.
    names = [f"{unit.tensor}.{INNER_PREFIX}.codes", f"{unit.tensor}.codes"]
    if unit.integer and not coded:  # without codes at its output, the op is found by its own name or that of its rows
        names = [unit.path, f"{unit.path}.rows", *names]
    return next((actual[n] for n in names if n in actual), None)


def _moves_before_quantizer(partition: Partition, unit: Unit) -> bool:
    # A real value that is only moved has the same codes whether it is quantized before or after the move.
    root = unit.group.root
    coded = any(partition.encoding(source, root) is not None for slot, source in slots(root) if slot == "input")
    return not coded and unit.kind in partition.target.commuting and only_moves_codes(root)


__all__ = ["wrong_predictions"]
