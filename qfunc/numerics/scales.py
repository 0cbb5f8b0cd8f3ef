"""Scales: which number the hardware holds for a real scale."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.numerics import minifloat
from qfunc.specs import FLOAT32, Float, Int, Levels, Log, PerChannel, PerTensor, PerToken, Scale, Scheme

TINY = torch.finfo(torch.float32).tiny
"""The smallest normal float32, 2^-126: the inverse of what is smaller may not be finite."""


def nearest_scale(scale: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor | None]:
    """(scale, outer): the scales nearest to `scale` that the hardware takes, in float32.

    1 replaces a scale below 2^-126.  Then powers of two by `Scale.rounding`, the bounds `low` and `high`, and
    the scale's own `format`, which is never 0 and never overflows.  E8M0 holds 2^-127 for all that is smaller,
    0 included.  Two levels: outer = allowed(max(s) / largest of the format), s = format(s / outer), 1 for a
    zero.

    Args:
        scale: Real, of the shape of the qparams; float64 for one rounding only; negative where `Scale.signed`
            allows it.  NaN stays NaN.
        scheme: Any; a `Log` format takes every scale.
    Raises:
        SpecError: an outer scale that is shared by blocks.
    Source: OCP Microscaling Formats 1.0, section 6.3 and microxcaling (E8M0); NVIDIA TensorRT Model Optimizer,
        NVFP4 (two levels: amax / (6 * 448), then E4M3).

    >>> from qfunc.specs import E8M0, PerBlock
    >>> nearest_scale(torch.tensor([0.3]), Scheme(scale=Scale(PerBlock(0, 32), format=E8M0, rounding="floor")))[0].item()
    0.25
    """
    rule = scheme.scale
    if isinstance(scheme.format, Log):
        return scale.float(), None
    if rule.within is None:
        return _held(scale.double(), rule), None
    scale = scale.double()
    outer = _held(_outermost(scale.abs(), rule.within) / minifloat.largest(rule.format), rule.within)
    return _held(torch.where(scale.abs() < TINY, 1.0, scale / outer.double()), rule), outer


def divisor(scheme: Scheme) -> float:
    """d of a symmetric scheme, s = absmax / d, as `Scale.divisor` names it.

    >>> [divisor(Scheme(Int(4), Scale(divisor=d))) for d in ("qmax", "half_range", "-qmin", "emax")]
    [7.0, 7.5, 8.0, 4.0]
    """
    fmt = scheme.format
    top = float(fmt.qmax) if isinstance(fmt, Int) else minifloat.largest(fmt) if isinstance(fmt, Float) else 0.0
    if isinstance(fmt, Levels):
        top = max(abs(fmt.values[0]), abs(fmt.values[-1]))
    match scheme.scale.divisor, fmt:
        case "half_range", Int():
            return (fmt.qmax - fmt.qmin) / 2
        case "-qmin", Int():
            return -float(fmt.qmin)
        case "emax", _:
            return float(2.0 ** (math.frexp(top)[1] - 1))
    return top


def _held(scale: Tensor, rule: Scale) -> Tensor:
    magnitude, fmt = scale.abs(), rule.format
    if not minifloat.without_zero(fmt):
        # Not TINY: of a global number `torch.compile(dynamic=True)` makes an input, and does not find it in a Function.
        magnitude = torch.where(magnitude < torch.finfo(torch.float32).tiny, 1.0, magnitude)
    if rule.power_of_two:
        magnitude = _power_of_two(magnitude.clamp(min=minifloat.smallest(fmt)), rule.rounding)
    if rule.low is not None or rule.high is not None:
        magnitude = magnitude.clamp(rule.low, rule.high)
    if fmt != FLOAT32:
        low, high = max(minifloat.smallest(fmt), TINY / 2), minifloat.largest(fmt)
        high = 2.0 ** (math.frexp(high)[1] - 1) if rule.power_of_two else high
        magnitude = minifloat.nearest(magnitude.clamp(low, high), fmt)
    return torch.copysign(magnitude, scale).float() if rule.signed else magnitude.float()


def _power_of_two(x: Tensor, rounding: str) -> Tensor:
    fraction, exponent = torch.frexp(x)  # exact, where log2 could round onto an integer
    # 0.5**0.5 is the first float64 above the root of a half: from there on log2 is nearer to the power above.
    up = {"ceil": fraction > 0.5, "floor": fraction >= 1.0, "half_even": fraction >= 0.5**0.5}[rounding]
    return torch.where(
        torch.isfinite(x), minifloat.power_of_two((exponent - 1 + up).clamp(max=127)), x
    )  # 2^127: float32's last


def _outermost(scale: Tensor, rule: Scale) -> Tensor:
    # The largest scale of each group that shares an outer one, keeping the axes.
    match rule.shared:
        case PerTensor():
            return scale.amax() if scale.numel() else scale.new_ones(())
        case PerChannel(axis=int(axis)):
            axes = [i for i in range(scale.ndim) if i != axis % scale.ndim]
        case PerToken():
            axes = [scale.ndim - 1]
        case _:
            wanted = "PerTensor(), PerChannel(axis) or PerToken()"
            do = "Share the outer scale among blocks."
            raise SpecError(where="Scale.within", found=repr(rule.shared), wanted=wanted, do=do)
    if not scale.numel():
        return scale.new_ones([1 if i in axes else n for i, n in enumerate(scale.shape)])
    return scale.amax(axes, keepdim=True)


def product(scales: Sequence[Tensor], count: int) -> Tensor:
    """The scales of a bias, float32: those of the input times those of the weight, one for each of its channels.

    >>> product([torch.tensor(0.5), torch.tensor([2.0, 4.0])], 2)
    tensor([1., 2.])
    """
    scale = torch.ones((), device=scales[0].device)
    for each in scales:
        scale = scale.to(each.device) * each.flatten()
    # The weight of a transposed conv has one scale for each channel of a group.
    return (scale.expand(count) if scale.numel() == 1 else scale.repeat(count // scale.numel())).clone()


__all__ = ["TINY", "nearest_scale", "divisor", "product"]
