"""Number formats: the values of codes."""

from __future__ import annotations

from fractions import Fraction

from attrs import field, frozen

from qfunc.errors import SpecError
from qfunc.specs._check import as_tuple, instance_of, integer, number, refuse, tuple_of
from qfunc.specs._values import readable


@frozen
class Int:
    """An integer of `bits` bits whose codes are `low` to `high`, both included.

    The default codes are all codes of the width: [-2^(bits-1), 2^(bits-1)-1] if signed, else [0, 2^bits-1].  Bounds that
    equal these are dropped: `Int(8, low=-128) == Int(8)`.

    Args:
        bits: The width in which a code is stored.
        signed: Whether codes may be negative.
        low, high: The smallest and the largest code that the hardware allows.
    Raises:
        SpecError: the range is empty or wider than the width.

    >>> Int(8), Int(8).qmin, Int(8, low=-127).qmin, Int(4, signed=False).qmax
    (Int(8), -128, -127, 15)
    """

    bits: int = field(default=8, validator=integer(2, 64))
    signed: bool = field(default=True, validator=instance_of(bool))
    low: int | None = field(default=None, validator=integer(optional=True))
    high: int | None = field(default=None, validator=integer(optional=True))

    qmin: int = field(init=False, eq=False)
    """The smallest code."""
    qmax: int = field(init=False, eq=False)
    """The largest code."""

    def __attrs_post_init__(self) -> None:
        low = -(1 << self.bits - 1) if self.signed else 0
        object.__setattr__(self, "qmin", low if self.low is None else self.low)
        object.__setattr__(self, "qmax", (1 << self.bits - self.signed) - 1 if self.high is None else self.high)
        if self.low is None and self.high is None:
            return
        full = Int(self.bits, self.signed)
        if not full.qmin <= self.qmin < self.qmax <= full.qmax:
            found, wanted = f"[{self.qmin}, {self.qmax}]", f"low < high inside [{full.qmin}, {full.qmax}]"
            raise SpecError(
                where="Int.low, high", found=found, wanted=wanted, do=f"Narrow the range or widen the {self.bits} bits."
            )
        for name, given, usual in (("low", self.low, full.qmin), ("high", self.high, full.qmax)):
            if given == usual:
                object.__setattr__(self, name, None)

    def __repr__(self) -> str:
        parts = [str(self.bits)] + ([] if self.signed else ["signed=False"])
        parts += [f"{n}={v}" for n, v in (("low", self.low), ("high", self.high)) if v is not None]
        return f"Int({', '.join(parts)})"


@readable
@frozen
class Float:
    """A small float: a sign bit, `exponent` and `mantissa` bits, largest finite value `max`.

    `bias` is the exponent bias (None: 2^(exponent-1)-1).  `max=None` is IEEE's: the highest exponent means
    infinity and NaN.  `saturate` clamps overflow to `max`, else it becomes infinity or NaN.
    `negative_zero=False` marks the FNUZ variants; `signed=False` has no sign bit (E8M0).

    Raises:
        SpecError: a `max` that is not a value of the format.

    Source: OCP 8-bit Floating Point Specification 1.0; OCP Microscaling Formats 1.0, table 1.

    >>> Float(4, 3, max=448.0)
    Float(4, mantissa=3, max=448.0)
    """

    exponent: int = field(validator=integer(1, 11))
    mantissa: int = field(validator=integer(0, 52))
    bias: int | None = field(default=None, kw_only=True, validator=integer(-4096, 4096, optional=True))
    max: float | None = field(default=None, kw_only=True, validator=number(positive=True, optional=True))
    saturate: bool = field(default=True, kw_only=True, validator=instance_of(bool))
    negative_zero: bool = field(default=True, kw_only=True, validator=instance_of(bool))
    signed: bool = field(default=True, kw_only=True, validator=instance_of(bool))

    def __attrs_post_init__(self) -> None:
        if self.max is None:
            return
        bias = (1 << self.exponent - 1) - 1 if self.bias is None else self.bias
        value, step = Fraction(self.max), Fraction(2) ** (1 - bias - self.mantissa)  # the step of the subnormals
        largest = (2 - Fraction(1, 1 << self.mantissa)) * Fraction(2) ** ((1 << self.exponent) - 1 - bias)
        while step * (2 << self.mantissa) <= value <= largest:
            step *= 2
        if value > largest or value % step:
            wanted = (
                f"a multiple of {float(step):g} up to {float(largest):g}" if value <= largest else f"at most {float(largest):g}"
            )
            do = f"Give a value that {self.exponent} exponent and {self.mantissa} mantissa bits can hold."
            raise refuse(self, "max", self.max, wanted, do)


@readable
@frozen
class Log:
    """A sign, `magnitude_bits` bits of exponent in steps of 1/`steps_per_octave` of an octave.

    Source: HiSilicon NNIE (hardware notes of MQBench): 7 bits, 16 steps.

    >>> Log()
    Log()
    """

    magnitude_bits: int = field(default=7, validator=integer(1, 15))
    steps_per_octave: int = field(default=16, validator=integer(1))


@readable
@frozen
class Levels:
    """A codebook: code i stands for `values[i]`, which strictly increase.

    >>> Levels((-1.0, 0.0, 1.0)).values
    (-1.0, 0.0, 1.0)
    """

    values: tuple[float, ...] = field(converter=as_tuple, validator=tuple_of(float, at_least=2))

    def __attrs_post_init__(self) -> None:
        finite = all(abs(v) < float("inf") for v in self.values)
        if not finite or not all(a < b for a, b in zip(self.values, self.values[1:], strict=False)):
            raise refuse(self, "values", self.values, "strictly increasing finite numbers", "Sort them and drop repeats.")


Format = Int | Float | Log | Levels

FLOAT32 = Float(8, 23)
FLOAT16 = Float(5, 10)
BFLOAT16 = Float(8, 7)
