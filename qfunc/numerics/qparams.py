"""Qparams: the scale and the zero point that the hardware supports for the range of a tensor."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.numerics import logarithmic
from qfunc.numerics.rounding import round_by
from qfunc.numerics.scales import TINY, divisor, nearest_scale
from qfunc.specs import Int, Log, PerBlock, PerChannel, PerTensor, PerToken, Scheme, ZeroPoint


class Affine(NamedTuple):
    """Qparams of x_hat = (code - zero_point) * scale; both are float32, in the shape of `qparams_shape`.

    `outer` is the second-level scale of two-level schemes, x_hat = code * (scale * outer), or None; with `Scale.integers` it
    has the shape of the scale.  `minimum` is that of `Scheme.minimum` in the same shape, or None: x_hat = code * s + minimum,
    or code * s + minimum * outer_minimum.  A `Log` format's scale is its smallest magnitude, 2^(z/steps).

    >>> Affine(torch.tensor(0.5), torch.tensor(3.0)).scale
    tensor(0.5000)
    """

    scale: Tensor
    zero_point: Tensor
    outer: Tensor | None = None
    minimum: Tensor | None = None
    outer_minimum: Tensor | None = None


def block_size(scheme: Scheme, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of elements along each axis that share a scale, for every granularity.

    >>> from qfunc.specs import Scale
    >>> [block_size(Scheme(scale=Scale(g)), (6, 64)) for g in (PerTensor(), PerChannel(0), PerBlock(1, 32))]
    [(6, 64), (1, 64), (1, 32)]
    """
    match scheme.scale.shared:
        case PerTensor():
            return shape
        case PerToken():
            return (1,) * (len(shape) - 1) + shape[-1:]
        case PerChannel(axis=int(axis)) if -len(shape) <= axis < len(shape):
            return (*shape[: axis % len(shape)], 1, *shape[axis % len(shape) + 1 :])
        case PerBlock(axis=axis, size=size, partial=partial) if -len(shape) <= axis < len(shape) and (
            partial or shape[axis] % size == 0
        ):
            return tuple(size if i == axis % len(shape) else 1 for i in range(len(shape)))
    wanted = "an axis of the tensor that the block size divides"
    raise SpecError(
        where="Scale.shared",
        found=f"{scheme.scale.shared} on shape {shape}",
        wanted=wanted,
        do="Use an axis of the tensor and a size that divides it.",
    )


def qparams_shape(scheme: Scheme, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of scale and zero point: [] per tensor, else the rank of x with one entry per block.

    Args:
        scheme: Its granularity divides the tensor into blocks.
        shape: The shape of the tensor.

    >>> from qfunc.specs import PerChannel, Scale
    >>> qparams_shape(Scheme(), (4, 3)), qparams_shape(Scheme(scale=Scale(PerChannel(0))), (4, 3))
    ((), (4, 1))
    """
    if isinstance(scheme.scale.shared, PerTensor):
        return ()
    sizes = block_size(scheme, shape)
    return tuple(-(-n // b) if b else 1 for n, b in zip(shape, sizes, strict=True))  # an empty axis is one block


def blocks(x: Tensor, scheme: Scheme) -> tuple[Tensor, tuple[int, ...]]:
    """Return a view of x and its axes inside a block; reducing over them gives `qparams_shape`.

    A partial block is filled with zeros.

    >>> from qfunc.specs import PerBlock, Scale
    >>> view, axes = blocks(torch.zeros(4, 6), Scheme(scale=Scale(PerBlock(1, 3))))
    >>> tuple(view.shape), axes
    ((4, 1, 2, 3), (1, 3))
    """
    if isinstance(scheme.scale.shared, PerTensor):
        return x, tuple(range(x.ndim))
    sizes, x = block_size(scheme, tuple(x.shape)), filled(x, scheme)
    split = [n for total, b in zip(x.shape, sizes, strict=True) for n in (total // b, b)]
    return x.reshape(split), tuple(range(1, 2 * x.ndim, 2))


def spread(parameter: Tensor, x: Tensor, scheme: Scheme) -> Tensor:
    """Return a qparam in a shape that broadcasts against x; only blocks are repeated."""
    shared = scheme.scale.shared
    if not isinstance(shared, PerBlock) or parameter.ndim == 0:
        return parameter
    return parameter.repeat_interleave(shared.size, shared.axis).narrow(shared.axis, 0, x.shape[shared.axis])


def filled(x: Tensor, scheme: Scheme) -> Tensor:
    """Return x with zeros after a partial last block; x itself if there is none.

    >>> from qfunc.specs import Scale
    >>> filled(torch.ones(3), Scheme(scale=Scale(PerBlock(0, 2, partial=True)))).tolist()
    [1.0, 1.0, 1.0, 0.0]
    """
    shared = scheme.scale.shared
    if not isinstance(shared, PerBlock) or not shared.partial or not x.shape[shared.axis] % shared.size:
        return x
    after = x.ndim - 1 - shared.axis % x.ndim
    return F.pad(x, (*[0] * (2 * after), 0, -x.shape[shared.axis] % shared.size))


def from_range(low: Tensor, high: Tensor, scheme: Scheme, outer: Tensor | None = None) -> Affine:
    """Return the scale and zero point that represent the range [low, high], extended to include 0.

    Affine: s = (max(high, 0) - min(low, 0)) / (qmax - qmin), z = clamp(R(qmin - low/s), qmin, qmax), the zero
    point nudged by `ZeroPoint.nudge`.  Symmetric: s = max(|low|, |high|) / d, d from `Scale.divisor`,
    z = 0; low is ignored if no code is negative.  Log: z = R(k log2 max) - (2^bits - 1), s = 2^(z/k).
    `nearest_scale` then maps the scale to one that the hardware supports; s = 1 for the range [0, 0].

    Args:
        low, high: In real units, in the shape of the qparams, finite; low <= high.
        scheme: The scheme of the tensor.
        outer: The outer scale of a symmetric scheme with two levels, if it is known.
    Returns:
        Qparams in float32.
    Source: ONNX Runtime quantization tool (affine); TFLite quantization specification (symmetric); OCP
        Microscaling Formats 1.0, section 6.3 (divisor "emax"); NVIDIA TensorRT (NVFP4's two levels).

    >>> u8 = Scheme(Int(8, signed=False), zero_point=ZeroPoint())
    >>> [t.item() for t in from_range(torch.tensor(-1.0), torch.tensor(4.1), u8)[:2]]
    [0.019999999552965164, 50.0]
    """
    # Computed in float64, so that the quotient is rounded to float32 only once.
    low, high = low.double().clamp(max=0), high.double().clamp(min=0)
    if scheme.scale.minimum_range:
        high = torch.maximum(high, low + scheme.scale.minimum_range)
    if scheme.zero_point is None:
        scale, outer = nearest_scale(_symmetric(low, high, scheme), scheme, outer)
        return Affine(scale, torch.zeros_like(scale), outer)
    fmt = scheme.format
    assert isinstance(fmt, Int)  # Scheme requires it
    if scheme.zero_point.value is not None:
        scale, outer = nearest_scale(_smallest_scale(low, high, float(scheme.zero_point.value), fmt), scheme)
        return Affine(scale, torch.full_like(scale, scheme.zero_point.value), outer)
    scale, outer = nearest_scale((high - low) / (fmt.qmax - fmt.qmin), scheme)
    zero = _zero_point(low, high, scale if outer is None else scale * outer, fmt, scheme.zero_point)
    if scheme.zero_point.nudge == "outward":
        scale, outer = nearest_scale(_smallest_scale(low, high, zero, fmt), scheme)
    return Affine(scale, zero.float(), outer)


def observed(x: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """Return (low, high) of a tensor by the scheme's granularity, in float32 and in one pass; 0 if x is empty.

    With `Scale.equals="first"`, where low = -high and the positive one comes first, low is the next number towards 0.

    >>> from qfunc.specs import Scale
    >>> [t.tolist() for t in observed(torch.tensor([[1.0, -2.0], [3.0, 4.0]]), Scheme(scale=Scale(PerToken())))]
    [[[-2.0], [3.0]], [[1.0], [4.0]]]
    """
    low, high = _ends(x.detach(), scheme)
    if scheme.scale.equals == "negative" or not x.numel():
        return low, high
    view, axes = blocks(x.detach().float(), scheme)
    flat = view.movedim(axes, tuple(range(-len(axes), 0))).flatten(-len(axes))
    first = flat.gather(-1, flat.abs().argmax(-1, keepdim=True)).reshape(low.shape)
    return torch.where((low == -high) & (first > 0), torch.nextafter(low, torch.zeros_like(low)), low), high


def _ends(x: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    shared = scheme.scale.shared
    if x.numel() == 0:
        zero = torch.zeros(qparams_shape(scheme, tuple(x.shape)), device=x.device)
        return zero, zero
    if isinstance(shared, PerTensor):
        # aminmax copies non-contiguous tensors; channels_last is contiguous with its axes in memory order.
        low, high = torch.aminmax(x if x.is_contiguous() else x.permute(sorted(range(x.ndim), key=x.stride, reverse=True)))
        return low.float(), high.float()
    shape = tuple(x.shape)
    axes = [axis for axis, size in enumerate(block_size(scheme, shape)) if size > 1]
    if not axes:  # amin would reduce over all axes
        low, high = x.clone(), x.clone()
    elif isinstance(shared, PerBlock):
        split = filled(x, scheme).reshape(*shape[: axes[0]], -1, shared.size, *shape[axes[0] + 1 :])
        low, high = split.amin(axes[0] + 1), split.amax(axes[0] + 1)
    else:
        # First over the contiguous axes inside a channel, then over the images: faster in torch than all at once.
        inner = [axis for axis in axes if axis > axes[0] + axes.index(axis)]
        outer = axes[: len(axes) - len(inner)] if inner else []
        low, high = x.amin(inner or axes, keepdim=True), x.amax(inner or axes, keepdim=True)
        if outer:
            low, high = low.amin(outer, keepdim=True), high.amax(outer, keepdim=True)
    return low.float(), high.float()


def of_tensor(x: Tensor, scheme: Scheme, outer: Tensor | None = None) -> Affine:
    """Return qparams of the range of x itself, as hardware with dynamic scales computes them at run time.

    >>> of_tensor(torch.tensor([-12.7, 3.0]), Scheme()).scale.item()
    0.10000000149011612
    """
    return from_range(*observed(x, scheme), scheme, outer)


def _symmetric(low: Tensor, high: Tensor, scheme: Scheme) -> Tensor:
    fmt = scheme.format
    # Codes that are never negative represent nothing below 0, as with a zero point fixed at qmin.
    extreme = high if isinstance(fmt, Int) and fmt.qmin >= 0 else torch.maximum(-low, high)
    if isinstance(fmt, Log):
        return logarithmic.scale_from_max(torch.where(extreme < TINY, 1.0, extreme), fmt)
    # A signed scale maps the extreme to qmin, because |qmin| = qmax + 1.
    sign = torch.where(high > -low, -1.0, 1.0) if scheme.scale.signed else 1.0
    return sign * extreme / divisor(scheme)


def _smallest_scale(low: Tensor, high: Tensor, zero: Tensor | float, fmt: Int) -> Tensor:
    # The smallest scale at which the codes reach both bounds from the zero point.
    z = torch.as_tensor(zero, dtype=torch.float64, device=low.device)
    below = torch.where(z > fmt.qmin, -low / (z - fmt.qmin).clamp(min=1), 0.0)
    above = torch.where(z < fmt.qmax, high / (fmt.qmax - z).clamp(min=1), 0.0)
    return torch.maximum(below, above)


def _zero_point(low: Tensor, high: Tensor, scale: Tensor, fmt: Int, rule: ZeroPoint) -> Tensor:
    from_low, from_high = fmt.qmin - low / scale.double(), fmt.qmax - high / scale.double()
    real = from_low
    if rule.nudge == "nearest":
        # gemmlowp, ChooseQuantizationParams: use the bound with less cancellation.
        error_low = abs(fmt.qmin) + (low / scale.double()).abs()
        error_high = abs(fmt.qmax) + (high / scale.double()).abs()
        real = torch.where(error_low < error_high, from_low, from_high)
    return round_by(real, rule.rounding).clamp(fmt.qmin, fmt.qmax)
