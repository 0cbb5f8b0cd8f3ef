"""Kernels: which arithmetic which unit of a runtime has, and when it runs on integers."""

from __future__ import annotations

from typing import get_args

from attrs import field, frozen

from qfunc.specs._check import ROUNDINGS, SLOTS, as_tuple, instance_of, one_of, refuse, tuple_of
from qfunc.specs._values import readable
from qfunc.specs.arithmetic.operators import (
    AverageCodes,
    AveragePool,
    Bilinear,
    DequantizeSum,
    FixedBits,
    FixedPointLanes,
    HardSwish16,
    QuantizeLanes,
    SoftmaxFixed,
    SoftmaxFloat,
    SoftmaxTable,
)
from qfunc.specs.arithmetic.requantization import (
    Copy,
    FixedPoint,
    FloatKernel,
    FloatMultiplier,
    FloatRequantize,
    Shift,
    SumFma,
    SumScaled,
    SumShifted,
    Unknown,
    ZeroPointShifts,
)
from qfunc.specs.formats import Float, Format, Int, Levels, Log
from qfunc.specs.placement import ClampImplied, Condition, NoZeroPoint, SameQParams
from qfunc.specs.selectors import Selector, selector

Arithmetic = (
    FloatMultiplier | FloatRequantize | FixedPoint | Shift | SumFma | SumShifted | AveragePool | FloatKernel
    | SoftmaxTable | ZeroPointShifts | Copy | Unknown | SumScaled
    | AverageCodes | FixedBits | HardSwish16 | Bilinear | SoftmaxFloat | SoftmaxFixed | FixedPointLanes | DequantizeSum
    | QuantizeLanes
)  # fmt: skip
ARITHMETIC: tuple[type, ...] = get_args(Arithmetic)


@readable
@frozen
class Bounds:
    """How a bound v of an activation that is fused becomes a code: R(v / s_y) + z, in float32.

    `zero_point="before"`: R(v / s_y + z).

    Source: TensorFlow Lite kernel_util.cc, CalculateActivationRangeQuantized; XNNPACK, xnn_qs8_quantize of output_min and
    output_max.

    >>> Bounds(zero_point="before")
    Bounds(zero_point='before')
    """

    rounding: str = field(default="half_even", validator=one_of(ROUNDINGS))
    zero_point: str = field(default="after", validator=one_of(("after", "before")))


@readable
@frozen
class Kernel:
    """The selected units run with this arithmetic if their tensors have these formats and `integer_if` holds.

    `formats`: slot name -> formats that the kernel takes, as ((slot, (format, ...)), ...); () takes all.
    A unit that no kernel takes runs in float: dequantize, op, quantize.  FLOAT32 is a tensor without qparams: as the
    output's format it is a kernel that dequantizes its accumulators.  A kernel that takes FLOAT32 alone is a form of the
    op in float32, bit for bit as the runtime's, between dequantize and quantize where there are codes.  `bounds` says how those
    of fused activations become codes; None: rounded as the arithmetic rounds, half away where it does so in steps.

    Raises:
        SpecError: a slot or a format that does not exist, or a slot twice.

    >>> from qfunc.specs.selectors import Op
    >>> from qfunc.specs.arithmetic.requantization import SumFma
    >>> Kernel(Op("add"), SumFma("half_up"))
    Kernel(Op('add'), arithmetic=SumFma('half_up'))
    """

    unit: Selector = field(validator=selector())
    arithmetic: Arithmetic = field(validator=instance_of(*ARITHMETIC))
    formats: tuple[tuple[str, tuple[Format, ...]], ...] = field(
        default=(), kw_only=True, converter=as_tuple, validator=tuple_of(tuple)
    )
    integer_if: tuple[Condition, ...] = field(
        default=(), converter=as_tuple, kw_only=True, validator=tuple_of(ClampImplied, SameQParams, NoZeroPoint)
    )

    bounds: Bounds | None = field(default=None, kw_only=True, validator=instance_of(Bounds, optional=True))

    def __attrs_post_init__(self) -> None:
        for entry in self.formats:
            good = len(entry) == 2 and type(entry[0]) is str and entry[0] in SLOTS and type(entry[1]) is tuple
            if not good or not entry[1] or not all(type(f) in (Int, Float, Log, Levels) for f in entry[1]):
                do = "Pair a slot with at least one format."
                raise refuse(self, "formats", entry, "(slot, (format, ...))", do)
        if len({entry[0] for entry in self.formats}) < len(self.formats):
            raise refuse(self, "formats", self.formats, "each slot once", "Put all formats of a slot in one entry.")
