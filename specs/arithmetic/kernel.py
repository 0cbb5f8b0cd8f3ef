"""Kernels: which arithmetic which unit of a runtime has, and when it runs on integers."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from attrs import field, frozen

from qfunc.specs._check import ROUNDINGS, SLOTS, as_tuple, implements, instance_of, one_of, refuse, tuple_of
from qfunc.specs._values import readable
from qfunc.specs.number_format import FLOAT32, Float, Format, Int, Levels, Log
from qfunc.specs.placement import CONDITIONS, Condition
from qfunc.specs.protocols import Arithmetic, Dequantization, Quantization, RealArithmetic, RoundingArithmetic
from qfunc.specs.selectors import Selector, selector

_PROTOCOLS = {kind: implements(kind) for kind in (Arithmetic, Quantization, Dequantization)}


def is_arithmetic(instance: Any, attribute: Any, value: Any) -> None:
    """Raise unless a value is an arithmetic: of a frozen class with the methods of the protocol."""
    kind = next((k for k in (Quantization, Dequantization) if isinstance(value, k)), Arithmetic)
    _PROTOCOLS[kind](instance, attribute, value)


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

    A unit without a kernel runs in float: dequantize, op, quantize.  FLOAT32 is the format of a tensor without qparams.  A
    kernel with FLOAT32 as the format of its output dequantizes its accumulators.  A kernel that accepts only FLOAT32
    computes the op in float32, bit for bit as the runtime does, between dequantize and quantize of tensors with codes; one
    whose arithmetic reads reals may also name the formats of a weight in blocks, which the arithmetic dequantizes.

    Args:
        unit: The roots of the units.
        arithmetic: The arithmetic: a value of qfunc's, or of a frozen class of your own with the methods of `Arithmetic`.
        formats: The formats that the kernel accepts, as ((slot, (format, ...)), ...); () accepts all.
        integer_if: Conditions on the qparams.
        bounds: How bounds of fused activations become codes; None rounds them as the arithmetic does, and half away from
            zero if the arithmetic rounds in steps.
    Raises:
        SpecError: no arithmetic, a slot or a format that does not exist, or a slot twice.

    >>> from qfunc.specs.selectors import Op
    >>> from qfunc.specs import SumFma
    >>> Kernel(Op("add"), SumFma("half_up"))
    Kernel(Op('add'), arithmetic=SumFma('half_up'))
    """

    unit: Selector = field(validator=selector())
    arithmetic: Arithmetic | Quantization | Dequantization = field(validator=is_arithmetic)
    formats: tuple[tuple[str, tuple[Format, ...]], ...] = field(
        default=(), kw_only=True, converter=as_tuple, validator=tuple_of(tuple)
    )
    integer_if: tuple[Condition, ...] = field(default=(), converter=as_tuple, kw_only=True, validator=tuple_of(*CONDITIONS))

    bounds: Bounds | None = field(default=None, kw_only=True, validator=instance_of(Bounds, optional=True))

    def __attrs_post_init__(self) -> None:
        for entry in self.formats:
            good = len(entry) == 2 and type(entry[0]) is str and entry[0] in SLOTS and type(entry[1]) is tuple
            if not good or not entry[1] or not all(type(f) in (Int, Float, Log, Levels) for f in entry[1]):
                do = "Pair a slot with at least one format."
                raise refuse(self, "formats", entry, "(slot, (format, ...))", do)
        if len({entry[0] for entry in self.formats}) < len(self.formats):
            raise refuse(self, "formats", self.formats, "each slot once", "Put all formats of a slot in one entry.")

    @cached_property
    def in_float(self) -> bool:
        """True if the kernel reads real values only: codes are dequantized before it, or those of a weight by itself."""
        wanted = dict(self.formats)
        weight = wanted.pop("weight", None)
        if not all(formats == (FLOAT32,) for formats in wanted.values()):
            return False
        if weight is None or (isinstance(self.arithmetic, RealArithmetic) and self.arithmetic.reads_reals):
            return bool(wanted)
        return weight == (FLOAT32,)

    @cached_property
    def rounded_bounds(self) -> Bounds:
        """How bounds of fused activations become codes."""
        rounding = self.arithmetic.rounding if isinstance(self.arithmetic, RoundingArithmetic) else "half_away"
        return self.bounds or Bounds(rounding)
