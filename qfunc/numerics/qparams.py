"""Qparams: from the range of a tensor to a scale and a zero point that the hardware takes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.numerics.rounding import round_by
from qfunc.specs import Int, PerBlock, PerChannel, PerTensor, PerToken, Scheme


class Affine(NamedTuple):
    """x_hat = (code - zero_point) * scale; both float32 and of one shape that broadcasts against x.

    `outer` is the second-level scale of two-level schemes, or None.
    """

    scale: Tensor
    zero_point: Tensor
    outer: Tensor | None = None


def block_size(scheme: Scheme, shape: tuple[int, ...]) -> tuple[int, ...]:
    """How many elements along each axis share a scale: the one granularity that all others are.

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
            return tuple(1 if i == axis % len(shape) else n for i, n in enumerate(shape))
        case PerBlock(axis=axis, size=size) if -len(shape) <= axis < len(shape) and shape[axis] % size == 0:
            return tuple(size if i == axis % len(shape) else 1 for i in range(len(shape)))
    wanted = "an axis of the tensor that the block size divides"
    raise SpecError(
        where="Scale.shared", found=f"{scheme.scale.shared} on shape {shape}", wanted=wanted, do="Name another axis."
    )


def qparams_shape(scheme: Scheme, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of scale and zero point: [] per tensor, else x's rank with one entry a block."""
    if isinstance(scheme.scale.shared, PerTensor):
        return ()
    return tuple(n // b for n, b in zip(shape, block_size(scheme, shape), strict=True))


def blocks(x: Tensor, scheme: Scheme) -> tuple[Tensor, tuple[int, ...]]:
    """x viewed so that the returned axes run inside one block; reducing them gives `qparams_shape`."""
    if isinstance(scheme.scale.shared, PerTensor):
        return x, tuple(range(x.ndim))
    sizes = block_size(scheme, tuple(x.shape))
    split = [n for total, b in zip(x.shape, sizes, strict=True) for n in (total // b, b)]
    return x.reshape(split), tuple(range(1, 2 * x.ndim, 2))


def from_range(low: Tensor, high: Tensor, scheme: Scheme) -> Affine:
    """Scale and zero point that hold the range [low, high], zero included.

    Affine: s = (max(high, 0) - min(low, 0)) / (qmax - qmin), z = clamp(R(qmin - low/s), qmin, qmax).
    Symmetric: s = max(|low|, |high|) / d, d from `Scale.divisor`, z = 0.  Then s is rounded up to a power
    of two if the hardware wants one, and clamped to the hardware's scales; s = 1 for the range [0, 0].

    Args:
        low, high: In real units, of the shape of the qparams, finite; low <= high.
        scheme: With an Int format.
    Returns:
        Affine qparams in float32.
    Source: ONNX Runtime quantization tool (affine); TFLite quantization specification (symmetric).

    >>> u8 = Scheme(Int(8, signed=False), zero_point=__import__("qfunc").specs.ZeroPoint())
    >>> [t.item() for t in from_range(torch.tensor(-1.0), torch.tensor(4.1), u8)[:2]]
    [0.019999999552965164, 50.0]
    """
    fmt = scheme.format
    if not isinstance(fmt, Int):
        raise SpecError(where="from_range", found=repr(fmt), wanted="an Int format", do="Use that format's own rule.")
    # float64 inside: the quotient is rounded to float32 once.
    low, high = low.double().clamp(max=0), high.double().clamp(min=0)
    if scheme.scale.minimum_range:
        high = torch.maximum(high, low + scheme.scale.minimum_range)
    if scheme.zero_point is None:
        divisor = {"qmax": fmt.qmax, "half_range": (fmt.qmax - fmt.qmin) / 2, "-qmin": -fmt.qmin}[scheme.scale.divisor]
        scale = torch.maximum(-low, high) / divisor
    elif scheme.zero_point.value is not None:
        z = scheme.zero_point.value
        below = -low / (z - fmt.qmin) if z > fmt.qmin else torch.zeros_like(low)
        above = high / (fmt.qmax - z) if z < fmt.qmax else torch.zeros_like(high)
        scale = torch.maximum(below, above)
    else:
        scale = (high - low) / (fmt.qmax - fmt.qmin)
    scale = _allowed(scale, scheme)
    if scheme.zero_point is None:
        zero = torch.zeros_like(scale)
    elif scheme.zero_point.value is not None:
        zero = torch.full_like(scale, scheme.zero_point.value)
    else:
        real = fmt.qmin - low / scale.double()
        zero = round_by(real, scheme.zero_point.rounding).clamp(fmt.qmin, fmt.qmax).float()
    return Affine(scale, zero)


def _allowed(scale: Tensor, scheme: Scheme) -> Tensor:
    # The nearest scale that the hardware takes; the smallest normal float32 keeps 1/s finite.
    tiny = torch.finfo(torch.float32).tiny
    scale = torch.where(scale < tiny, torch.ones_like(scale), scale)
    if scheme.scale.power_of_two:
        fraction, exponent = torch.frexp(scale)  # exact, where log2 could round onto an integer
        scale = torch.ldexp(torch.ones_like(scale), exponent - (fraction == 0.5).int())
    if scheme.scale.low is not None or scheme.scale.high is not None:
        scale = scale.clamp(scheme.scale.low, scheme.scale.high)
    return scale.float()
