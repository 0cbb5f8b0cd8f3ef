"""Units that a runtime computes on codes."""

from __future__ import annotations

from qfunc.graph.data_movement import commutes
from qfunc.graph.selectors import matches
from qfunc.placement.partition import Partition
from qfunc.placement.units import Unit
from qfunc.specs import Unknown


def on_codes(partition: Partition, unit: Unit) -> bool:
    """Return True if a unit computes codes from codes: by an integer kernel, by moving them, or in a way that is not public.

    A unit without a kernel that its rule keeps in float, or with a real input or result, does not.
    """
    output = partition.output_encoding(unit.group.output)
    if output is None:
        return False
    if unit.integer:
        return True
    inputs = [o.encoding for o in partition.operands(unit.group) if o.slot not in ("output", "bias")]
    coded = [encoding for encoding in inputs if encoding is not None]
    if len(coded) < len(inputs) or partition.keeps_float(unit.group):
        return False
    if commutes(unit.group.root, partition.context, partition.target):
        return all(encoding.same(output) for encoding in coded)
    context, root = partition.context, unit.group.root
    return any(isinstance(k.arithmetic, Unknown) and matches(k.unit, root, context) for k in partition.target.kernels)
