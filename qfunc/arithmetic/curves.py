"""Curves of codes."""

from __future__ import annotations

from attrs import field, frozen

from qfunc.arithmetic.computation import Computation
from qfunc.arithmetic.unit import UnitSpec
from qfunc.numerics.kernels.activations import glu_codes, hard_swish16
from qfunc.specs._check import integer
from qfunc.specs._values import readable


@readable
@frozen
class HardSwish16:
    """hardswish with x = 2^7 (q - z) in 16 bits; h = SRDHM(x, m_y), r = (SRDHM(x, m_6) + 2^15) / 2, y = R(h r 2^-15 2^e) + z.

    m_y 2^e = s_x / (2^7 s_y) and m_6 = s_x 2^15 / (3 * 2^7), both divided in float32 and rounded to 16 bits; h r 2^-15 is cut
    off, R is half away.

    Whole runs of `lanes` entries in memory round h r 2^-15 down and all else half up.  None: no entries do.

    Source: TFLite reference_ops HardSwish; optimized_ops HardSwish, NEON (8 lanes).

    >>> HardSwish16()
    HardSwish16()
    """

    lanes: int | None = field(default=None, validator=integer(1, optional=True))

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of a hardswish."""
        if unit.kind != "hardswish":
            raise unit.unfit(self, ("hardswish",))
        x, *_ = unit.coded_inputs
        scales = (x.coding.zero_point, x.coding.scale, unit.coding.scale)
        return Computation(hard_swish16, (x, *scales, *unit.code_range, self.lanes, unit.channels_last))


@readable
@frozen
class GluTable:
    """y = R((a - z_x) T[b] s_x / (2^23 s_y)) + z, a and b the halves of int8 codes and T = R(2^23 sigmoid(s_x (b - z_x))).

    The multiplier has 31 bits, and R is half up.

    Source: qfunc; TOSA 1.0: TABLE, MUL, RESCALE.

    >>> GluTable()
    GluTable()
    """

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of a gated linear unit."""
        if unit.kind != "glu":
            raise unit.unfit(self, ("glu",))
        x, *_ = unit.coded_inputs
        scales = (x.coding.scale, x.coding.zero_point, unit.coding.scale)
        return Computation(glu_codes, (x, unit.arguments["dim"], *scales, *unit.code_range))
