"""The scale that the hardware stores for a real scale."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.numerics import minifloat
from qfunc.specs import FLOAT32, Float, Int, Levels, Log, PerChannel, PerTensor, PerToken, Scale, Scheme

TINY = torch.finfo(torch.float32).tiny
"""The smallest normal float32, 2^-126: the inverse of a smaller number may overflow."""


def has_scales_of_outputs(scheme: Scheme, axis: int, rank: int) -> bool:
    """Return True if a weight has one scale, or one for each output channel: a factor of a sum of products.

    >>> has_scales_of_outputs(Scheme(scale=Scale(PerChannel(0))), 1, 2)
    False
    """
    shared = scheme.scale.shared
    along = isinstance(shared, PerChannel) and (shared.axis == "channel" or int(shared.axis) % rank == axis % rank)
    return along or isinstance(shared, PerTensor)


def nearest_scale(scale: Tensor, scheme: Scheme, outer: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Return (scale, outer): the float32 scales nearest to `scale` that the hardware supports.

    1 replaces a scale below 2^-126.  The scale is then rounded to a power of two by `Scale.rounding`, clamped to
    `low` and `high`, and rounded to the scale's `format`, where it never becomes 0 and never overflows.  In E8M0
    every smaller scale, 0 included, becomes 2^-127.  Two levels: outer = allowed(max(s) / largest of the format),
    s = format(s / outer), 1 for a zero.  With `Scale.rounded="after"` the scale stays in float32, at least 2^-126.

    Args:
        scale: Real, in the shape of the qparams; pass float64 to round only once; negative where `Scale.signed`
            allows it.  NaN stays NaN.
        scheme: The scheme of the tensor; a `Log` format supports every scale.
        outer: The outer scale, if it is known: s is at most the format's largest value.
    Raises:
        SpecError: an outer scale per block.
    Source: OCP Microscaling Formats 1.0, section 6.3 and microxcaling (E8M0); NVIDIA TensorRT Model Optimizer,
        NVFP4 (two levels: amax / (6 * 448), then E4M3).

    >>> from qfunc.specs import PerBlock
    >>> from qfunc.specs.formats import E8M0
    >>> nearest_scale(torch.tensor([0.3]), Scheme(scale=Scale(PerBlock(0, 32), format=E8M0, rounding="floor")))[0].item()
    0.25
    """
    rule = scheme.scale
    if isinstance(scheme.format, Log):
        return scale.float(), None
    if rule.within is None or rule.integers is not None:  # functions that search find both
        return _hardware_scale(scale.double(), rule), None
    scale = scale.double()
    if outer is None:
        outer = outer_scale(_group_maximum(scale.abs(), rule.within), rule)
    return inner_scale(scale, outer, rule), outer


def outer_scale(largest: Tensor, rule: Scale) -> Tensor:
    """Return the outer scale for the largest scale of a group: allowed(largest / largest of the format).

    >>> from qfunc.specs.formats import E4M3FN
    >>> outer_scale(torch.tensor(224.0), Scale(format=E4M3FN, within=Scale())).item()
    0.5
    """
    assert rule.within is not None
    return _hardware_scale(largest.double() / minifloat.largest(rule.format), rule.within)


def inner_scale(scale: Tensor, outer: Tensor, rule: Scale) -> Tensor:
    """Return the inner scale of two levels for a real one: format(scale / outer), 1 where the scale is 0.

    >>> from qfunc.specs.formats import E4M3FN
    >>> inner_scale(torch.tensor(0.3), torch.tensor(0.5), Scale(format=E4M3FN, within=Scale())).item()
    0.625
    """
    scale = scale.double()
    return _hardware_scale(torch.where(scale.abs() < TINY, 1.0, scale / outer.double()), rule)


def stored_scale(scale: Tensor, scheme: Scheme) -> Tensor:
    """Return the scale of x_hat for the one that codes are computed with: the same, unless it is rounded after the codes.

    It may be 0 then, and the largest value of its format replaces larger ones.

    >>> from qfunc.specs import FLOAT16
    >>> stored_scale(torch.tensor(0.1), Scheme(scale=Scale(format=FLOAT16, rounded="after"))).item()
    0.0999755859375
    """
    if scheme.scale.rounded == "before":
        return scale
    largest = minifloat.largest(scheme.scale.format)
    return minifloat.nearest(scale.clamp(-largest, largest), scheme.scale.format)


def divisor(scheme: Scheme) -> float:
    """Return d of a symmetric scheme, s = absmax / d, for the name in `Scale.divisor`.

    >>> from qfunc.specs.formats import E2M1
    >>> [divisor(Scheme(Int(4), Scale(divisor=d))) for d in ("qmax", "half_range", "-qmin", "emax")]
    [7.0, 7.5, 8.0, 4.0]
    >>> divisor(Scheme(E2M1, Scale(divisor="emax_rounded")))
    3.5
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
        case "emax_rounded", Float(mantissa=bits):
            return float(2.0 ** (math.frexp(top)[1] - 1)) * (1 - 2.0 ** -(bits + 2))
    return top


def _hardware_scale(scale: Tensor, rule: Scale) -> Tensor:
    magnitude, fmt = scale.abs(), rule.format
    if rule.rounded == "after":
        magnitude = magnitude.clamp(max(TINY, rule.low or 0.0), rule.high)
        return torch.copysign(magnitude, torch.where(scale == 0, -1.0, scale) if rule.signed else magnitude).float()
    if not minifloat.without_zero(fmt):
        # Not TINY: torch.compile(dynamic=True) turns a global number into an input, which an autograd.Function cannot find.
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
    fraction, exponent = torch.frexp(x)  # exact; log2 could round to an integer
    # 0.5**0.5 is the first float64 above the root of 1/2: from there on log2 is nearer to the next power.
    up = {"ceil": fraction > 0.5, "floor": fraction >= 1.0, "half_even": fraction >= 0.5**0.5}[rounding]
    power = minifloat.power_of_two((exponent - 1 + up).clamp(max=127))  # 2^127 is the last power of two in float32
    return torch.where(torch.isfinite(x), power, x)


def _group_maximum(scale: Tensor, rule: Scale) -> Tensor:
    # The largest scale of each group that shares an outer scale; the axes are kept.
    match rule.shared:
        case PerTensor():
            return scale.amax() if scale.numel() else scale.new_ones(())
        case PerChannel(axis=int(axis)):
            axes = [i for i in range(scale.ndim) if i != axis % scale.ndim]
        case PerToken():
            axes = [scale.ndim - 1]
        case _:
            wanted = "PerTensor(), PerChannel(axis) or PerToken()"
            do = "Give the outer scale one of these granularities."
            raise SpecError(where="Scale.within", found=repr(rule.shared), wanted=wanted, do=do)
    if not scale.numel():
        return scale.new_ones([1 if i in axes else n for i, n in enumerate(scale.shape)])
    return scale.amax(axes, keepdim=True)


def product(scales: Sequence[Tensor], count: int) -> Tensor:
    """Return the float32 scales of a bias, one per channel: the scales of the input times those of the weight.

    >>> product([torch.tensor(0.5), torch.tensor([2.0, 4.0])], 2)
    tensor([1., 2.])
    """
    scale = torch.ones((), device=scales[0].device)
    for factor in scales:
        scale = scale.to(factor.device) * factor.flatten()
    # The weight of a transposed conv has one scale for each channel of one group.
    return (scale.expand(count) if scale.numel() == 1 else scale.repeat(count // scale.numel())).clone()
