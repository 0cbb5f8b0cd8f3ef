"""The integers that a unit of a partition multiplies and sums, and the range of the sums."""

from __future__ import annotations

from qfunc.arithmetic.integers import Integers, SumRange, integers_of, sum_range
from qfunc.placement.encoding import takes_float_bias
from qfunc.placement.partition import Partition
from qfunc.placement.units import Unit
from qfunc.specs import Accumulator
from qfunc.specs.protocols import SummingArithmetic


def products_of(partition: Partition, unit: Unit) -> Integers | None:
    """Return the integers of a unit with a kernel and a constant weight, or None for other units.

    Raises:
        EmulationError: a bias with a scale of its own that is no power of two from s_x s_w.
    """
    if unit.kernel is None:
        return None
    described = partition.described(unit.group, unit.kernel, partition.output_encoding(unit.group.output))
    return integers_of(described.unit, takes_float_bias(unit.kernel.arithmetic))


def accumulator_of(arithmetic: object) -> Accumulator | None:
    """Return the accumulator of an arithmetic, or None if the arithmetic sums exactly.

    >>> from qfunc.specs import Shift
    >>> accumulator_of(Shift("floor", accumulator=16))
    Accumulator(16)
    """
    if not isinstance(arithmetic, SummingArithmetic) or arithmetic.accumulator is None:
        return None
    held: int | Accumulator = arithmetic.accumulator
    return Accumulator(held) if isinstance(held, int) else held


def range_of_unit(partition: Partition, unit: Unit) -> SumRange | None:
    """Return the range of a unit's sums of products, or None for a unit that has none, or that sums exactly."""
    accumulator = None if unit.kernel is None or not unit.integer else accumulator_of(unit.kernel.arithmetic)
    if unit.kernel is None or accumulator is None:
        return None
    described = partition.described(unit.group, unit.kernel, partition.output_encoding(unit.group.output))
    return sum_range(described.unit, accumulator, integers_of(described.unit, takes_float_bias(unit.kernel.arithmetic)))
