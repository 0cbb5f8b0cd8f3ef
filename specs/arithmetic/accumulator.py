"""Accumulators: how many bits a sum of products has, and what happens to a sum that needs more."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from qfunc.specs._check import as_tuple, instance_of, integer, one_of, refuse
from qfunc.specs._values import readable


@readable
@frozen
class Wraps:
    """A sum beyond the accumulator starts again at the other end: the exact sum modulo 2^bits.

    The order of the additions changes nothing.

    Source: two's complement adders, as in the int32 accumulators of CPUs.

    >>> Wraps()
    Wraps()
    """


@readable
@frozen
class SaturatesAtEnd:
    """The exact sum, with its bias, is clamped once, to [-2^(bits-1), 2^(bits-1) - 1].

    >>> SaturatesAtEnd()
    SaturatesAtEnd()
    """


_AXES = ("channel", "position")


def _order(instance: Any, attribute: Any, value: Any) -> None:
    if type(value) is not tuple or sorted(map(str, value)) != sorted(_AXES):
        raise refuse(instance, "order", value, 'the words "channel" and "position", outermost first', "Name both once.")


@readable
@frozen
class SaturatesEachStep:
    """Each addition is clamped to [-2^(bits-1), 2^(bits-1) - 1], so that the order of the additions changes the sum.

    Args:
        order: The loops over one output's products, outermost first: "channel", the input channels of its group, and
            "position", the positions of the kernel row by row, as they are in the weight. Each loop counts upwards.
        bias: "first", the accumulator starts at the bias; "last", the bias is added to the sum of all products.
        products: The number of successive products that are added exactly, as one term.
    Raises:
        SpecError: an order that lacks an axis or repeats one.

    Source: saturating instructions, such as x86 VPDPBUSDS with 4 products (Intel 64 and IA-32 manual, volume 2).

    >>> SaturatesEachStep(("position", "channel"), products=4)
    SaturatesEachStep(('position', 'channel'), products=4)
    """

    order: tuple[str, ...] = field(default=_AXES, converter=as_tuple, validator=_order)
    bias: str = field(default="first", kw_only=True, validator=one_of(("first", "last")))
    products: int = field(default=1, kw_only=True, validator=integer(1))


@readable
@frozen
class SaturatesPairs:
    """Two successive products of codes are added with saturation to 16 bits, the sums of two then exactly; the total wraps.

    The products are those of the input's codes, zero point included, and of signed weights.  They are in the order of the
    kernel's positions, row by row, and at each position of the input channels of a group; one that is left over is alone.
    Convolutions with one input and one output channel per group add all products exactly, as those of unsigned weights.

    Source: x86 VPMADDUBSW (Intel 64 and IA-32 manual, volume 2), by which ONNX Runtime's MLAS multiplies with AVX2 and without
        VNNI (mlas/lib/qgemm_kernel_avx2.cpp).

    >>> SaturatesPairs()
    SaturatesPairs()
    """


Overflow = Wraps | SaturatesAtEnd | SaturatesEachStep | SaturatesPairs


@readable
@frozen
class Accumulator:
    """An accumulator of `bits` bits, in two's complement, and what a sum that needs more becomes.

    It holds the sum of products of codes minus their zero points, and the bias unless the arithmetic adds that as a real
    number.  The fractional bits of a bias with its own power of two are in addition to `bits`.  A field
    `accumulator` takes the number of bits for an accumulator that wraps.

    >>> Accumulator(24, SaturatesAtEnd())
    Accumulator(24, overflow=SaturatesAtEnd())
    """

    bits: int = field(default=32, validator=integer(8, 64))
    overflow: Overflow = field(default=Wraps(), validator=instance_of(Wraps, SaturatesAtEnd, SaturatesEachStep, SaturatesPairs))


def canonical(value: Any) -> Any:
    """Return the bits of an accumulator that wraps, so that each accumulator has one spelling; any other value as it is.

    >>> canonical(Accumulator(16)), canonical(Accumulator(16, SaturatesAtEnd()))
    (16, Accumulator(16, overflow=SaturatesAtEnd()))
    """
    return value.bits if type(value) is Accumulator and value.overflow == Wraps() else value


def is_accumulator(instance: Any, attribute: Any, value: Any) -> None:
    """The value must be an `Accumulator`, or the number of bits of one that wraps."""
    if type(value) is not Accumulator and (type(value) is not int or not 8 <= value <= 64):
        wanted = "an Accumulator, or the bits of one that wraps, an int in [8, 64]"
        raise refuse(instance, attribute.name, value, wanted, "Give such a value.")
