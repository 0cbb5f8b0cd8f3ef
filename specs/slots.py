"""Slot values: what a rule may put on a tensor besides a Scheme."""

from __future__ import annotations

from math import frexp

from attrs import field, frozen

from qfunc.specs._check import ROUNDINGS, SLOTS, as_tuple, instance_of, integer, number, one_of, refuse, slots_among, tuple_of
from qfunc.specs._values import readable
from qfunc.specs.formats import Int
from qfunc.specs.scheme import Scheme
from qfunc.specs.selectors import SELECTORS, Selector

__all__ = ["SLOTS", "Cases", "DerivedQParams", "FixedQParams", "KeepFloat", "SlotValue"]


@readable
@frozen
class DerivedQParams:
    """A tensor whose scale is the product of other scales: the int32 bias, s = s_input * s_weight, z = 0.

    >>> DerivedQParams().format
    Int(32)
    """

    format: Int = field(default=Int(32), validator=instance_of(Int))
    of: tuple[str, ...] = field(
        default=("input", "weight"), converter=as_tuple, validator=slots_among("input", "weight", "output")
    )
    rounding: str = field(default="half_even", validator=one_of(ROUNDINGS))


@readable
@frozen
class FixedQParams:
    """Qparams that the hardware dictates: softmax writes 1/256 with zero point 0.

    Raises:
        SpecError: qparams that the scheme does not allow.

    >>> FixedQParams(Scheme(Int(8, signed=False), zero_point=None), 1 / 256).zero_point
    0
    """

    scheme: Scheme = field(validator=instance_of(Scheme))
    scale: float = field(validator=number(positive=True))
    zero_point: int = field(default=0, validator=integer())

    def __attrs_post_init__(self) -> None:
        fmt, rule, affine = self.scheme.format, self.scheme.scale, self.scheme.zero_point
        if affine is None and self.zero_point != 0:
            raise refuse(
                self, "zero_point", self.zero_point, "0, for the scheme is symmetric", "Give the scheme a ZeroPoint()."
            )
        if isinstance(fmt, Int) and affine is not None and not fmt.qmin <= self.zero_point <= fmt.qmax:
            raise refuse(
                self, "zero_point", self.zero_point, f"a code in [{fmt.qmin}, {fmt.qmax}]", "Choose a code of the format."
            )
        if affine is not None and affine.value not in (None, self.zero_point):
            raise refuse(self, "zero_point", self.zero_point, f"the scheme's {affine.value}", "Give the same twice.")
        if rule.dynamic:
            raise refuse(self, "scheme", self.scheme, "a scale that is not dynamic", "Drop dynamic=True.")
        if rule.power_of_two and frexp(self.scale)[0] != 0.5:
            raise refuse(self, "scale", self.scale, "a power of two, as the scheme says", "Give 2.0**k.")
        low, high = rule.low or 0.0, rule.high or float("inf")
        if not low <= self.scale <= high:
            raise refuse(self, "scale", self.scale, f"a scale in [{low}, {high}], as the scheme says", "Move it inside.")


@readable
@frozen
class KeepFloat:
    """Float on purpose; a rule that is silent leaves the slot to later rules, this one ends the search.

    >>> KeepFloat()
    KeepFloat()
    """


@readable
@frozen
class Cases:
    """The first case whose selector holds for the tensor decides, else `default`.

    >>> from qfunc.specs.selectors import NonNegative
    >>> Cases(((NonNegative(), Scheme(Int(8, signed=False))),), default=Scheme()).default.format
    Int(8)
    """

    cases: tuple[tuple[Selector, object], ...] = field(validator=tuple_of(tuple, at_least=1))
    default: object = field()

    def __attrs_post_init__(self) -> None:
        kinds = (Scheme, DerivedQParams, FixedQParams, KeepFloat)
        for case in self.cases:
            if len(case) != 2 or type(case[0]) not in SELECTORS or type(case[1]) not in kinds:
                raise refuse(self, "cases", case, "(selector, slot value)", "Pair a selector with a scheme.")
        if type(self.default) not in kinds:
            raise refuse(self, "default", self.default, "a Scheme, DerivedQParams, FixedQParams or KeepFloat", "Give one.")


SlotValue = Scheme | DerivedQParams | FixedQParams | Cases | KeepFloat
