"""Average pools of codes."""

from __future__ import annotations

import math

from attrs import field, frozen

from qfunc.arithmetic.computation import Computation, per_axis
from qfunc.arithmetic.unit import UnitSpec
from qfunc.numerics.kernels.activations import average_inside
from qfunc.numerics.kernels.pooling import average_codes, average_to
from qfunc.specs._check import ROUNDINGS, as_tuple, instance_of, integer, one_of, refuse, tuple_of
from qfunc.specs._values import readable


@readable
@frozen
class AveragePool:
    """y = R(sum / count * s_x / s_y) + z; `reciprocals` replaces 1 / count by k / 2^n: (kernel, k, n) triples.

    `reciprocal_bits`: kernels that are not listed have the k / 2^n nearest to 1 / count, the smallest n of
    equals, with n < reciprocal_bits + ceil(log2 count); None divides.

    Source: TFLite reference AveragePool; Vitis AI, vart/cpu-runner/src/op/pool_fix.cpp (3x3 is 7/2^6; 7 bits).

    >>> AveragePool("half_away")
    AveragePool('half_away')
    """

    rounding: str = field(validator=one_of(ROUNDINGS))
    reciprocals: tuple[tuple[tuple[int, int], int, int], ...] = field(default=(), converter=as_tuple, validator=tuple_of(tuple))
    reciprocal_bits: int | None = field(default=None, validator=integer(1, 24, optional=True))

    def __attrs_post_init__(self) -> None:
        for entry in self.reciprocals:
            if not _is_reciprocal(entry):
                wanted = "((height, width), numerator, shift), ints with shift in [0, 62] and the others at least 1"
                raise refuse(self, "reciprocals", entry, wanted, "Write 7/64 for 3x3 as ((3, 3), 7, 6).")
        if len({entry[0] for entry in self.reciprocals}) < len(self.reciprocals):
            raise refuse(self, "reciprocals", self.reciprocals, "each kernel once", "Drop the repeated one.")

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of a pool, or of an average over all positions.

        Raises:
            EmulationError: scales whose ratio is no power of two.
        """
        if unit.kind not in ("avg_pool", "adaptive_avg_pool", "global_avg_pool"):
            raise unit.unfit(self, ("avg_pool", "adaptive_avg_pool", "global_avg_pool"))
        x, *_ = unit.coded_inputs
        ratio = x.coding.scale / unit.coding.scale
        if math.frexp(ratio)[0] != 0.5:
            found, do = (
                f"scales {x.coding.scale!r} and {unit.coding.scale!r}",
                "Add SameQParams() to the kernel, or tie the scales.",
            )
            raise unit.error(found, "equal ones, or powers of two", do)
        pool = None
        if unit.kind == "avg_pool":
            pool = [per_axis(unit, name) for name in ("kernel_size", "stride", "padding")]
        elif unit.kind == "adaptive_avg_pool" and per_axis(unit, "output_size") != [1] * unit.spatial:
            do = "Let the kernel select only pools to the size 1."
            raise unit.error("an adaptive pool to several windows", "a pool to the size 1", do)
        keep = unit.arguments["keepdim"] if unit.kind == "global_avg_pool" else True
        table = [[list(kernel), k, n] for kernel, k, n in self.reciprocals]
        how = (ratio, table, self.reciprocal_bits, self.rounding, *unit.code_range)
        return Computation(average_codes, (x, x.coding.zero_point, unit.spatial, pool, keep, *how))


@readable
@frozen
class AverageCodes:
    """y = R(sum(q) / count), of codes with their zero point, which is that of the output; `count` are those inside.

    `centred`: y = R(sum(q - z) / count) + z.

    Source: TFLite reference_integer_ops AveragePool; TOSA 1.0 AVG_POOL2D (centred; its reciprocal of 31 bits makes ties go
        away from zero).

    >>> AverageCodes("half_away")
    AverageCodes('half_away')
    """

    rounding: str = field(validator=one_of(ROUNDINGS))
    centred: bool = field(default=False, kw_only=True, validator=instance_of(bool))

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of a pool.

        Raises:
            EmulationError: a pool over three axes.
        """
        if unit.kind not in ("avg_pool", "adaptive_avg_pool"):
            raise unit.unfit(self, ("avg_pool", "adaptive_avg_pool"))
        x, *_ = unit.coded_inputs
        if unit.spatial > 2:
            raise unit.error("a pool over 3 axes", "one or two", "Reshape the input, so that the pool slides over two axes.")
        how = (x.coding.zero_point, self.rounding, *unit.code_range[1:], self.centred)
        if unit.kind == "adaptive_avg_pool":
            return Computation(average_to, (x, per_axis(unit, "output_size"), *how))
        window = [per_axis(unit, name) for name in ("kernel_size", "stride", "padding")]
        return Computation(average_inside, (x, *window, unit.arguments["ceil_mode"], unit.arguments["count_include_pad"], *how))


def _is_reciprocal(entry: tuple[object, ...]) -> bool:
    if len(entry) != 3 or type(entry[0]) is not tuple or len(entry[0]) != 2:
        return False
    ints = [v for v in (*entry[0], *entry[1:]) if type(v) is int]
    return len(ints) == 4 and min(ints[:3]) >= 1 and 0 <= ints[3] <= 62
