"""Compute qparams from a scale that a formula defines, instead of from a range."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.numerics import minifloat
from qfunc.numerics.qparams import Affine, from_range
from qfunc.numerics.rounding import round_by
from qfunc.numerics.scales import nearest_scale
from qfunc.specs import Float, Format, Int, Levels, Log, Scheme


def from_scale(scale: Tensor, low: Tensor, scheme: Scheme) -> Affine:
    """Return the nearest scale that the hardware supports, and z = clamp(R(qmin - min(low, 0)/s), qmin, qmax) or 0.

    `ZeroPoint.nudge` and `Scale.minimum_range` adjust ranges, so they have no effect on a given scale.

    Args:
        scale: s in real units per code, float64, in the shape of the qparams, not negative.
        low: The smallest value, in real units, in the same shape.
        scheme: Any.

    >>> from qfunc.specs import ZeroPoint
    >>> u4 = Scheme(Int(4, signed=False), zero_point=ZeroPoint())
    >>> [t.item() for t in from_scale(torch.tensor(0.5), torch.tensor(-1.0), u4)[:2]]
    [0.5, 2.0]
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
    real = fmt.qmin - low.double().clamp(max=0) / (hardware_scale if outer is None else hardware_scale * outer).double()
    return Affine(hardware_scale, round_by(real, rule.rounding).clamp(fmt.qmin, fmt.qmax).float(), outer)


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


__all__ = ["from_scale", "largest"]
