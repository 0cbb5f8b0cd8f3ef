"""Slot values: the alternatives to a Scheme in a rule."""

from __future__ import annotations

from math import frexp

from attrs import field, frozen

from qfunc.specs._check import (
    ROUNDINGS, SLOTS, as_tuple, instance_of, integer, known_rounding, one_of, refuse, scale_number, slots_among, tuple_of,
)  # fmt: skip
from qfunc.specs._values import readable
from qfunc.specs.number_format import Int
from qfunc.specs.scheme import Scheme
from qfunc.specs.selectors import SELECTORS, Selector

__all__ = ["SLOTS", "Cases", "DerivedQParams", "FixedQParams", "KeepFloat", "SlotValue"]


@readable
@frozen
class DerivedQParams:
    """A tensor whose scale is the product of other scales: the int32 bias, s = s_input * s_weight, z = 0.

    Args:
        format: The format of the codes.
        of: The slots whose scales are multiplied.
        rounding: A name of `specs.ROUNDINGS`.

    >>> DerivedQParams().format
    Int(32)
    """

    format: Int = field(default=Int(32), validator=instance_of(Int))
    of: tuple[str, ...] = field(
        default=("input", "weight"), converter=as_tuple, validator=slots_among("input", "weight", "output")
    )
    rounding: str = field(default="half_even", validator=one_of(ROUNDINGS))

    def __attrs_post_init__(self) -> None:
        known_rounding(self, "rounding", self.rounding)


@readable
@frozen
class FixedQParams:
    """Qparams that the hardware fixes: a softmax has scale 1/256 and zero point 0.

    Args:
        scheme: The scheme.
        scale: The scale, in real units per code.
        zero_point: The zero point, in codes.
        smaller: True if the hardware also takes smaller scales.  Calibration then estimates the qparams of tensors
            with a mean absolute value of at most half a step: of a softmax over more than 512 entries, for 1/256.
    Raises:
        SpecError: qparams that the scheme does not allow.

    >>> FixedQParams(Scheme(Int(8, signed=False), zero_point=None), 1 / 256).zero_point
    0
    """

    scheme: Scheme = field(validator=instance_of(Scheme))
    scale: float = field(validator=scale_number())
    zero_point: int = field(default=0, validator=integer())
    smaller: bool = field(default=False, kw_only=True, validator=instance_of(bool))

    def __attrs_post_init__(self) -> None:
        fmt, rule, affine = self.scheme.format, self.scheme.scale, self.scheme.zero_point
        if affine is None and self.zero_point != 0:
            raise refuse(
                self, "zero_point", self.zero_point, "0, because the scheme is symmetric", "Give the scheme a ZeroPoint()."
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
            raise refuse(self, "scale", self.scale, "a power of two, as the scheme requires", "Give 2.0**k.")
        low, high = rule.low or 0.0, rule.high or float("inf")
        if not low <= self.scale <= high:
            raise refuse(self, "scale", self.scale, f"a scale in [{low}, {high}], as the scheme requires", "Move it inside.")


@readable
@frozen
class KeepFloat:
    """Float on purpose: later rules do not apply to the slot, as they would if its value were None.

    >>> KeepFloat()
    KeepFloat()
    """


@readable
@frozen
class Cases:
    """A slot value that depends on the tensor: that of the first case whose selector matches, else `default`.

    Args:
        cases: Pairs (selector, slot value).
        default: A `Scheme`, `DerivedQParams`, `FixedQParams` or `KeepFloat`.
    Raises:
        SpecError: a case that is not such a pair, or another default.

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
