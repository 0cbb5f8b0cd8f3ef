"""A rule's value for a slot, made that of one tensor: its axis of channels, its bits."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from qfunc.errors import SpecError
from qfunc.specs import FixedQParams, Int, PerChannel, PerTensor, Scheme
from qfunc.specs.edit._rewrites import narrowed


def with_axis(value: Any, axis: int, rank: int) -> Any:
    """A weight's value with the axis of its op's output channels in place of "channel"."""
    scheme = value.scheme if isinstance(value, FixedQParams) else value
    if not isinstance(scheme.scale.shared, PerChannel) or scheme.scale.shared.axis != "channel":
        return value
    if axis < 0 and rank != 2:  # a stack of matrices has no single channel axis
        return evolve(value, scale=evolve(scheme.scale, shared=PerTensor()))
    return evolve(value, scale=evolve(scheme.scale, shared=PerChannel(axis)))


def narrow(value: Any, bits: int) -> Any:
    """A scheme with the fewer bits that an override asks for.

    Raises:
        SpecError: codes that the hardware dictates, or more bits than it has.
    """
    fmt = value.format if isinstance(value, Scheme) else None
    if not isinstance(fmt, Int):
        wanted = f"None, for the hardware's weights are {'fixed' if fmt is None else repr(fmt)}, whose codes have one width"
        raise SpecError(where="Override.bits", found=repr(bits), wanted=wanted, do="Drop bits, or choose other hardware.")
    if bits > fmt.bits:
        raise SpecError(
            where="Override.bits",
            found=repr(bits),
            wanted=f"at most the {fmt.bits} bits of the hardware's {fmt}",
            do="Choose fewer bits, or other hardware.",
        )
    return evolve(value, format=narrowed(fmt, bits, fmt.signed)) if bits < fmt.bits else value
