"""Average pools: how hardware divides by the number of elements in a window."""

from __future__ import annotations

from attrs import field, frozen

from qfunc.specs._check import ROUNDINGS, as_tuple, integer, one_of, refuse, tuple_of
from qfunc.specs._repr import readable


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


def _is_reciprocal(entry: tuple[object, ...]) -> bool:
    if len(entry) != 3 or type(entry[0]) is not tuple or len(entry[0]) != 2:
        return False
    ints = [v for v in (*entry[0], *entry[1:]) if type(v) is int]
    return len(ints) == 4 and min(ints[:3]) >= 1 and 0 <= ints[3] <= 62
