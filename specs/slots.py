"""Slot values: what a rule may put on a tensor besides a Scheme."""

from __future__ import annotations

from attrs import field, frozen

from qfunc.specs._check import ROUNDINGS, instance_of, integer, number, one_of, refuse, tuple_of
from qfunc.specs.formats import Int
from qfunc.specs.scheme import Scheme
from qfunc.specs.selectors import Selector

SLOTS = ("input", "weight", "bias", "output")


@frozen
class Derived:
    """A tensor whose scale is the product of other scales: the int32 bias, s = s_input * s_weight, z = 0.

    >>> Derived().format
    Int(bits=32)
    """

    format: Int = field(default=Int(32), validator=instance_of(Int))
    of: tuple[str, ...] = field(default=("input", "weight"), validator=tuple_of(str, at_least=1))
    rounding: str = field(default="half_even", validator=one_of(ROUNDINGS))

    def __attrs_post_init__(self) -> None:
        if not set(self.of) <= {"input", "weight", "output"}:
            raise refuse(self, "of", self.of, 'slots among "input", "weight", "output"', "Name the slots.")


@frozen
class Fixed:
    """Qparams that the hardware dictates: softmax writes 1/256 with zero point 0.

    Raises:
        SpecError: the zero point is no code of the scheme.

    >>> Fixed(Scheme(Int(8, signed=False), zero_point=None), 1 / 256).zero_point
    0
    """

    scheme: Scheme = field(validator=instance_of(Scheme))
    scale: float = field(validator=number(positive=True))
    zero_point: int = field(default=0, validator=integer())

    def __attrs_post_init__(self) -> None:
        fmt = self.scheme.format
        if not isinstance(fmt, Int) or not fmt.qmin <= self.zero_point <= fmt.qmax:
            raise refuse(self, "zero_point", self.zero_point, f"a code of {fmt}", "Choose a code of the format.")


@frozen
class Keep:
    """Float on purpose; a rule that is silent leaves the slot to later rules, this one ends the search.

    >>> Keep()
    Keep()
    """


@frozen
class Cases:
    """The first case whose selector holds for the tensor decides, else `default`.

    >>> from qfunc.specs.selectors import NonNegative
    >>> Cases(((NonNegative(), Scheme(Int(8, signed=False))),), default=Scheme()).default.format
    Int(bits=8)
    """

    cases: tuple[tuple[Selector, object], ...] = field(validator=tuple_of(tuple, at_least=1))
    default: object = field()

    def __attrs_post_init__(self) -> None:
        kinds = (Scheme, Derived, Fixed, Keep)
        for case in self.cases:
            if len(case) != 2 or not isinstance(case[0], Selector) or not isinstance(case[1], kinds):
                raise refuse(self, "cases", case, "(selector, slot value)", "Pair a selector with a scheme.")
        if not isinstance(self.default, kinds):
            raise refuse(self, "default", self.default, "a Scheme, Derived, Fixed or Keep", "Give one.")


SlotValue = Scheme | Derived | Fixed | Cases | Keep
