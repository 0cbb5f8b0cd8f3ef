"""Schemes: how the hardware holds one tensor (its format, who shares a scale, the zero point, rounding)."""

from __future__ import annotations

from math import frexp

from attrs import field, frozen

from qfunc.specs._check import (
    FLOAT32_MAX, ROUNDINGS, instance_of, integer, known_rounding, number, one_of, refuse, scale_number,
)  # fmt: skip
from qfunc.specs._values import readable
from qfunc.specs.number_format import FLOAT32, Float, Format, Int, Levels, Log


@readable
@frozen
class PerTensor:
    """One scale for the whole tensor: scale shape [].

    >>> PerTensor()
    PerTensor()
    """


def _axis(instance: object, attribute: object, value: object) -> None:
    if type(value) is not int and not (type(value) is str and value == "channel"):
        raise refuse(instance, "axis", value, 'an int or "channel"', "Name the axis.")


@readable
@frozen
class PerChannel:
    """One scale for each index of `axis`: a [O, I, H, W] weight, axis 0 -> scale shape [O, 1, 1, 1].

    `axis="channel"` is the axis of the weight's output channels, which the record of the op defines.

    >>> PerChannel()
    PerChannel()
    """

    axis: str | int = field(default="channel", validator=_axis)


@readable
@frozen
class PerBlock:
    """One scale for each run of `size` elements along `axis`: [O, I], axis 1, size 32 -> scale [O, I/32].

    Args:
        axis: The axis.
        size: The elements of a block.
        partial: True if the last block may be shorter: [O, I] -> scale [O, ceil(I/32)].  The hardware fills it with zeros, and
            so do estimators.

    >>> PerBlock(-1, 32)
    PerBlock(-1, size=32)
    """

    axis: int = field(validator=integer())
    size: int = field(validator=integer(1))
    partial: bool = field(default=False, kw_only=True, validator=instance_of(bool))


@readable
@frozen
class PerToken:
    """One scale for each vector along the last axis: [N, T, D] -> scale shape [N, T, 1].

    >>> PerToken()
    PerToken()
    """


DIVISORS = ("qmax", "half_range", "-qmin", "emax", "emax_rounded")
Granularity = PerTensor | PerChannel | PerBlock | PerToken


@readable
@frozen
class Scale:
    """The scales that the hardware accepts, and the scale of a range.

    A symmetric scale is absmax / d, with d given by `divisor`.

    Args:
        shared: The elements that share a scale.
        format: The format in which the scale is stored, rounded half to even.
        rounded: "before" the codes are computed, which are those of the stored scale, or "after" (GGUF): x_hat is the
            code times the stored scale, and the code that of the float32 scale, which has no bounds but those of float32.
        power_of_two: True if log2 of the scale is rounded by `rounding`; E8M0 implies it.
        low, high: The smallest and the largest scale.
        rounding: "ceil" never clips, "floor" is that of OCP MX, "half_even" is nearest.
        divisor: d is qmax, the format's largest value ("qmax"), (qmax - qmin) / 2 ("half_range"), -qmin ("-qmin"), the
            largest power of two up to qmax ("emax": OCP MX), or that times 1 - 2^-(m+2) for floats with m bits of mantissa
            ("emax_rounded"): with rounding="floor", the exponent of absmax rounded half up to m bits decides.
        minimum_range: A narrower real range is widened to this width.
        signed: True if the scale has the sign of the extreme, so that it can be negative (GGUF Q4_0).
        equals: The extreme whose sign counts if low = -high: "negative", or the "first" in the block.
        dynamic: True if the scale is computed from the tensor at run time.
        within: A second scale that quantizes this one (NVFP4): s = format(s1 / s2) * s2.  Around a dynamic scale it is
            calibrated, unless it is dynamic itself.
        integers: The format of integers c with s = c d; d is the scale `within`, one for several blocks (GGUF's K types).
    Raises:
        SpecError: low > high, a divisor that does not exist, a bound that no scale of the kind can reach, a scale rounded
            after the codes that nothing rounds, integers without a scale of whole blocks around them, or a dynamic scale
            within which another is static.

    >>> Scale(power_of_two=True).divisor
    'qmax'
    """

    shared: Granularity = field(default=PerTensor(), validator=instance_of(PerTensor, PerChannel, PerBlock, PerToken))
    format: Float = field(default=FLOAT32, kw_only=True, validator=instance_of(Float))
    power_of_two: bool = field(default=False, kw_only=True, validator=instance_of(bool))
    rounded: str = field(default="before", kw_only=True, validator=one_of(("before", "after")))
    low: float | None = field(default=None, kw_only=True, validator=scale_number(optional=True))
    high: float | None = field(default=None, kw_only=True, validator=scale_number(optional=True))
    rounding: str = field(default="ceil", kw_only=True, validator=one_of(("ceil", "floor", "half_even")))
    divisor: str = field(default="qmax", kw_only=True, validator=one_of(DIVISORS))
    minimum_range: float = field(default=0.0, kw_only=True, validator=number())
    signed: bool = field(default=False, kw_only=True, validator=instance_of(bool))
    equals: str = field(default="negative", kw_only=True, validator=one_of(("negative", "first")))
    dynamic: bool = field(default=False, kw_only=True, validator=instance_of(bool))
    within: Scale | None = field(default=None, kw_only=True)
    integers: Int | None = field(default=None, kw_only=True, validator=instance_of(Int, optional=True))

    def __attrs_post_init__(self) -> None:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise refuse(self, "low, high", (self.low, self.high), "low <= high", "Swap them.")
        for name in ("low", "high") if self.power_of_two else ():
            bound = getattr(self, name)
            if bound is not None and frexp(bound)[0] != 0.5:
                raise refuse(self, name, bound, "a power of two, as the scales are", "Give 2.0**k.")
        if not self.format.signed and not self.format.mantissa:  # E8M0 holds nothing else
            object.__setattr__(self, "power_of_two", True)
        if self.rounding != "ceil" and not self.power_of_two:
            raise refuse(self, "rounding", self.rounding, "power_of_two=True with it", "Give both, or neither.")
        if self.rounded == "after" and (self.format == FLOAT32 or self.power_of_two or self.within is not None):
            wanted, do = '"before", unless a format below 32 bits is the only limit of the scale', "Drop it."
            raise refuse(self, "rounded", self.rounded, wanted, do)
        if self.equals == "first" and not self.signed:
            raise refuse(self, "equals", self.equals, "signed=True with it", "Give both, or neither.")
        if not 0 <= self.minimum_range <= FLOAT32_MAX:
            wanted = "at least 0" if self.minimum_range < 0 else "at most 2^128, as float32 holds ranges"
            raise refuse(self, "minimum_range", self.minimum_range, wanted, "Give the width of a range.")
        if self.within is not None and type(self.within) is not Scale:
            raise refuse(self, "within", self.within, "a Scale or None", "Give the outer Scale.")
        if self.within is not None and self.within.dynamic and not self.dynamic:
            do = "Give dynamic=True to both, or to the inner one."
            raise refuse(self, "within", self.within, "a static scale around a static one", do)
        if self.integers is not None and not _of_whole_blocks(self.shared, self.within):
            wanted = "None, unless `within` has blocks that are several of these"
            raise refuse(self, "integers", self.integers, wanted, "Give within=Scale(PerBlock(axis, size)), or drop them.")


def _of_whole_blocks(inner: Granularity, outer: Scale | None) -> bool:
    around = None if outer is None else outer.shared
    if not isinstance(inner, PerBlock) or not isinstance(around, PerBlock):
        return False
    return inner.axis == around.axis and around.size % inner.size == 0


@readable
@frozen
class ZeroPoint:
    """An affine zero point z = R(qmin - low/scale).

    Args:
        rounding: R, a name of `specs.ROUNDINGS`.
        value: A fixed zero point.
        nudge: "low" computes z from the low bound, as above; "nearest" from the bound with the smaller error (gemmlowp);
            "outward" as "low", and then enlarges the scale until the codes cover both bounds (NNCF).
        added: "before" adds z before the tensor is rounded: q = R(x/s + z) (Ascend).
    Raises:
        SpecError: both a nudge and a fixed value.

    >>> ZeroPoint()
    ZeroPoint()
    """

    rounding: str = field(default="half_even", validator=one_of(ROUNDINGS))
    value: int | None = field(default=None, validator=integer(optional=True))
    nudge: str = field(default="low", kw_only=True, validator=one_of(("low", "nearest", "outward")))
    added: str = field(default="after", kw_only=True, validator=one_of(("after", "before")))

    def __attrs_post_init__(self) -> None:
        known_rounding(self, "rounding", self.rounding)
        if self.value is not None and self.nudge != "low":
            raise refuse(self, "nudge", self.nudge, '"low", for the zero point is fixed', "Drop one of them.")


@readable
@frozen
class Scheme:
    """How the hardware stores one tensor.

    q = clamp(R(x / s) + z, qmin, qmax) and x_hat = (q - z) * s.  Formats without integers have no zero point: R(x / s)
    is their nearest value.  For codebooks and logarithms a tie has the even index.

    Args:
        format: The format of the codes, from qmin to qmax.
        scale: The rule for s.
        zero_point: The rule for z; None for a symmetric scheme, z = 0.
        rounding: R, a name of `specs.ROUNDINGS`.
        division: False if the hardware computes x * (1/s) in float32.
        minimum: True if each block has a real number m beside its scale, stored as that is: q = clamp(R((x - m) / s)) and
            x_hat = q s + m.
    Raises:
        SpecError: a zero point on a format without integers, or outside the codes; none where 0 is no code; a divisor that the
            format does not have, or that is 0; a rounding that the format does not have; a minimum of other codes than
            unsigned ones in blocks.

    >>> Scheme(Int(8, signed=False), zero_point=ZeroPoint()).symmetric
    False
    """

    format: Format = field(default=Int(), validator=instance_of(Int, Float, Log, Levels))
    scale: Scale = field(default=Scale(), validator=instance_of(Scale))
    zero_point: ZeroPoint | None = field(default=None, validator=instance_of(ZeroPoint, optional=True))
    rounding: str = field(default="half_even", kw_only=True, validator=one_of(ROUNDINGS))
    division: bool = field(default=True, kw_only=True, validator=instance_of(bool))
    minimum: bool = field(default=False, kw_only=True, validator=instance_of(bool))

    @property
    def searched(self) -> bool:
        """True if only functions that find minimums or integers of scales take the scheme."""
        return self.minimum or self.scale.integers is not None

    @property
    def symmetric(self) -> bool:
        """True if the zero point is always 0."""
        return self.zero_point is None

    def __attrs_post_init__(self) -> None:
        known_rounding(self, "rounding", self.rounding)
        without_zero = isinstance(self.format, Int) and not self.format.qmin <= 0 <= self.format.qmax
        if without_zero and self.zero_point is None and not self.minimum:
            wanted, do = "codes with 0, which is the code of 0 without a zero point", "Give a zero_point, or other bounds."
            raise refuse(self, "format", self.format, wanted, do)
        if self.scale.divisor in ("half_range", "-qmin") and not isinstance(self.format, Int):
            raise refuse(self, "scale.divisor", self.scale.divisor, "'qmax' or 'emax', for only Int has others", "Drop it.")
        if self.scale.divisor == "emax_rounded" and not isinstance(self.format, Float):
            wanted = "a divisor that does not depend on bits of a mantissa"
            raise refuse(self, "scale.divisor", "emax_rounded", wanted, f'Give "emax": {self.format!r} has no mantissa.')
        if self.scale.divisor == "-qmin" and self.format.qmin >= 0:  # type: ignore[union-attr]
            raise refuse(self, "scale.divisor", "-qmin", "a divisor above 0", f"Drop it: {self.format!r} has no negative code.")
        never_positive = isinstance(self.format, Int) and self.format.qmax <= 0
        if never_positive and self.zero_point is None and self.scale.divisor in ("qmax", "emax"):
            wanted, do = f"a divisor above 0, unlike the qmax of {self.format!r}", 'Give divisor="-qmin" or a zero point.'
            raise refuse(self, "scale.divisor", self.scale.divisor, wanted, do)
        if isinstance(self.format, Levels | Log) and self.rounding != "half_even":
            raise refuse(self, "rounding", self.rounding, "'half_even', the one of codebooks and logarithms", "Drop it.")
        if isinstance(self.format, Float) and self.rounding.endswith("_on_index"):
            raise refuse(self, "rounding", self.rounding, "a rounding of values, because floats have no index", "Name another.")
        unsigned = isinstance(self.format, Int) and self.format.qmin == 0 and isinstance(self.scale.shared, PerBlock)
        if self.minimum and (self.zero_point is not None or not unsigned):
            raise refuse(self, "minimum", True, "False, except for unsigned codes in blocks without zero points", "Drop it.")
        if self.zero_point is None:
            return
        if not isinstance(self.format, Int):
            raise refuse(self, "zero_point", self.zero_point, "None, for only Int has one", "Drop it.")
        value = self.zero_point.value
        if value is not None and not self.format.qmin <= value <= self.format.qmax:
            wanted = f"a code in [{self.format.qmin}, {self.format.qmax}]"
            raise refuse(self, "zero_point.value", value, wanted, "Choose a code of the format.")
        if self.scale.divisor != "qmax" or self.scale.signed:
            raise refuse(self, "scale", self.scale, "no divisor and no signed extreme", "They belong to symmetric schemes.")
