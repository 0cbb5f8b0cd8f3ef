"""Compute qparams from a scale that a formula defines, instead of from a range."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.numerics import minifloat
from qfunc.numerics.qparams import Affine, from_range
from qfunc.numerics.rounding import round_by
from qfunc.numerics.scales import nearest_scale
from qfunc.specs import Float, Format, Int, Levels, Log, Scheme


def from_scale(scale: Tensor, low: Tensor, share: Tensor, scheme: Scheme) -> Affine:
    """Return the nearest scale that the hardware supports, and z = qmin + R(min(-min(low, 0)/s, share (qmax - qmin))) or 0.

    Below zero there are as many codes as the smallest value needs, but at most the share of the negative values: few codes
    of this scale do not reach from the smallest value to zero.
    `ZeroPoint.nudge` and `Scale.minimum_range` adjust ranges, so they have no effect on a given scale.

    Args:
        scale: s in real units per code, float64, in the shape of the qparams, not negative.
        low: The smallest value, in real units, in the same shape.
        share: The part of the sum of |x| that negative x have, in [0, 1], in the same shape.
        scheme: Any.

    >>> from qfunc.specs import ZeroPoint
    >>> u4 = Scheme(Int(4, signed=False), zero_point=ZeroPoint())
    >>> half = torch.tensor(0.5)
    >>> [from_scale(half, torch.tensor(low), half, u4).zero_point.item() for low in (-1.0, -9.0)]
    [2.0, 8.0]
    """
    fmt, rule = scheme.format, scheme.zero_point
    if isinstance(fmt, Log):  # from_range rounds to its scales, which are steps of 1/steps_per_octave octave
        return from_range(-scale * largest(fmt), scale * largest(fmt), scheme)
    # Rounding to float32 must not create an infinity, but an infinite scale stays infinite.
    hardware_scale, outer = nearest_scale(
        torch.where(scale.isinf(), scale, scale.clamp(max=torch.finfo(torch.float32).max)), scheme
    )
    if rule is None:
        return Affine(hardware_scale, torch.zeros_like(hardware_scale), outer)
    assert isinstance(fmt, Int)  # Scheme requires it
    if rule.value is not None:
        return Affine(hardware_scale, torch.full_like(hardware_scale, rule.value), outer)
    needed = -low.double().clamp(max=0) / (hardware_scale if outer is None else hardware_scale * outer).double()
    below = torch.minimum(needed, share.double() * (fmt.qmax - fmt.qmin))
    return Affine(hardware_scale, round_by(fmt.qmin + below, rule.rounding).clamp(fmt.qmin, fmt.qmax).float(), outer)


def largest(fmt: Format) -> float:
    """Return the largest magnitude of the codes above zero at scale 1: Q_p, qmax of integers.

    >>> largest(Int(8)), largest(Levels((-2.0, 0.0, 1.0)))
    (127.0, 2.0)
    """
    match fmt:
        case Int():
            return float(fmt.qmax if fmt.qmax > 0 else -fmt.qmin)
        case Float():
            return minifloat.largest(fmt)
        case Levels():
            return max(abs(fmt.values[0]), abs(fmt.values[-1]))
        case Log():
            return float(2.0 ** (((1 << fmt.magnitude_bits) - 1) / fmt.steps_per_octave))


def largest_above_zero(scheme: Scheme) -> float:
    """Return Q_p of a scheme: the largest magnitude at scale 1, for integers that of qmax - z; with a free z, qmax - qmin.

    It is the same for signed and unsigned codes with a zero point, which name the same values.

    >>> from qfunc.specs import ZeroPoint
    >>> u8 = Int(8, signed=False)
    >>> [largest_above_zero(s) for s in (Scheme(), Scheme(u8, zero_point=ZeroPoint(value=128)), Scheme(zero_point=ZeroPoint()))]
    [127.0, 127.0, 255.0]
    """
    fmt, rule = scheme.format, scheme.zero_point
    if rule is None or not isinstance(fmt, Int):
        return largest(fmt)
    if rule.value is None:
        return float(fmt.qmax - fmt.qmin)
    return float(fmt.qmax - rule.value if fmt.qmax > rule.value else rule.value - fmt.qmin)
