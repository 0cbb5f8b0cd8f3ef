"""Qparams of a scale that a formula gives, instead of a range."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.numerics import minifloat
from qfunc.numerics.qparams import Affine, from_range
from qfunc.numerics.rounding import round_by
from qfunc.numerics.scales import nearest_scale
from qfunc.specs import Float, Format, Int, Levels, Log, Scheme


def from_scale(scale: Tensor, low: Tensor, scheme: Scheme) -> Affine:
    """The nearest scale that the hardware takes, and z = clamp(R(qmin - min(low, 0)/s), qmin, qmax) or 0.

    A zero point's nudge and a scale's minimum range choose among ranges; a scale of its own keeps neither.

    Args:
        scale: s in real units a code, float64, of the shape of the qparams, not negative.
        low: The smallest value, in real units, of the same shape.
        scheme: Any.

    >>> from qfunc.specs import ZeroPoint
    >>> u4 = Scheme(Int(4, signed=False), zero_point=ZeroPoint())
    >>> [t.item() for t in from_scale(torch.tensor(0.5), torch.tensor(-1.0), u4)[:2]]
    [0.5, 2.0]
    """
    fmt, rule = scheme.format, scheme.zero_point
    if isinstance(fmt, Log):  # its scales are steps of 1/steps_per_octave of an octave, which a range rounds to
        return from_range(-scale * largest(fmt), scale * largest(fmt), scheme)
    # The rounding to float32 makes no infinity; one that was there stays visible.
    held, outer = nearest_scale(torch.where(scale.isinf(), scale, scale.clamp(max=torch.finfo(torch.float32).max)), scheme)
    if rule is None:
        return Affine(held, torch.zeros_like(held), outer)
    assert isinstance(fmt, Int)  # Scheme's own rule
    if rule.value is not None:
        return Affine(held, torch.full_like(held, rule.value), outer)
    real = fmt.qmin - low.double().clamp(max=0) / (held if outer is None else held * outer).double()
    return Affine(held, round_by(real, rule.rounding).clamp(fmt.qmin, fmt.qmax).float(), outer)


def largest(fmt: Format) -> float:
    """The largest magnitude that the codes above zero stand for at scale 1: Q_p = qmax of integers.

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
