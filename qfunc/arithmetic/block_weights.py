"""Weights of products whose input is quantized at run time, in blocks along their inputs."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from qfunc.arithmetic.unit import Operand
from qfunc.numerics.scales import has_scales_of_outputs
from qfunc.numerics.sums.blocks import stored_bits
from qfunc.specs import Int, Lanes, PerBlock, Scheme
from qfunc.specs.arithmetic.lanes import BrgemmChunks, RegisterLanes


class Stored(NamedTuple):
    """A weight as a product reads it: codes [O, K], scales [O, blocks], and for each code the integers of its scale.

    `codes` are multiplied by these integers.  The minimums are m = k e, with k [O, K] and e [O, blocks], or with e alone.
    """

    codes: Tensor
    scale: Tensor
    integers: Tensor | None = None
    minimum_integers: Tensor | None = None
    minimum: Tensor | None = None


def stored(weight: Operand) -> Stored:
    """Return a constant weight with a coding."""
    assert weight.coding is not None
    assert weight.coding.qparams is not None
    qparams, scheme = weight.coding.qparams, weight.coding.scheme
    codes, scale = weight.constant.float(), qparams.scale.float()
    if qparams.outer is None:
        scale = scale.reshape(1, 1) if scale.numel() == 1 else scale
        if weight.channel_axis % 2:
            codes, scale = codes.T, scale.T
        scale = scale.expand(codes.shape[0], -1).contiguous()
        return Stored(codes.contiguous(), scale, minimum=qparams.minimum)
    ratio = scheme.scale.within.shared.size // scheme.scale.shared.size  # type: ignore[union-attr]
    size = codes.shape[1] // scale.shape[1]
    integers = scale.repeat_interleave(size, 1)
    whole = Stored(codes * integers, qparams.outer[:, ::ratio].contiguous(), integers)
    if qparams.minimum is None or qparams.outer_minimum is None:
        return whole
    return whole._replace(
        minimum_integers=-qparams.minimum.repeat_interleave(size, 1), minimum=-qparams.outer_minimum[:, ::ratio].contiguous()
    )


def stored_unsigned(weight: Operand) -> tuple[list[Tensor], int]:
    """Return the codes [N, K], scales and zero points of a weight as a file stores them, and its bits.

    A file stores signed codes plus half of its range, which is their zero point.
    """
    assert weight.coding is not None
    coding = weight.coding
    bits = stored_bits(coding.format.bits)
    shift = 1 << (bits - 1) if coding.format.signed else 0
    held = [weight.constant.float() + shift, coding.scales.float(), coding.zero_points.float() + shift]
    return ([tensor.T for tensor in held] if weight.channel_axis % 2 else held), bits


def unfit_weight(scheme: Scheme, axis: int, input: Scheme, lanes: Lanes | RegisterLanes | BrgemmChunks) -> str:
    """Return the reason why a product has no sums for a weight, or "".

    Args:
        scheme: The scheme of the weight.
        axis: The axis of its output channels.
        input: The scheme of the input.
        lanes: The partial sums.
    """
    if not scheme.symmetric and isinstance(lanes, Lanes):
        return "its weight has zero points"
    own = scheme.scale.shared
    if isinstance(own, PerBlock):
        if own.axis % 2 == axis % 2:
            return "the blocks of its weight are not along its inputs"
    elif not has_scales_of_outputs(scheme, axis, 2):
        return "its weight has one scale an input channel"
    if isinstance(lanes, Lanes):
        return ""
    return (_unfit_chunks if isinstance(lanes, BrgemmChunks) else _unfit_registers)(scheme, input)


def _unfit_chunks(scheme: Scheme, input: Scheme) -> str:
    own, shared, fmt = scheme.scale.shared, input.scale.shared, scheme.format
    if isinstance(fmt, Int) and fmt.signed and not scheme.symmetric:
        return "its signed weight has zero points"
    whole = isinstance(own, PerBlock) and isinstance(shared, PerBlock) and own.size % shared.size == 0
    return "" if whole else "the blocks of its weight are not whole blocks of its input"


def _unfit_registers(scheme: Scheme, input: Scheme) -> str:
    own, shared, fmt = scheme.scale.shared, input.scale.shared, scheme.format
    if not isinstance(own, PerBlock) or not isinstance(shared, PerBlock) or own.size != shared.size:
        return "the blocks of its weight are not those of its input"
    assert isinstance(fmt, Int)
    if shared.size not in ((32, 64, 128) if fmt.bits == 2 else (16, 32, 64, 128, 256)):
        return f"the runtime has no kernel for blocks of {shared.size} of {fmt.bits} bits"
    return ""
