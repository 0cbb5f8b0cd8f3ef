"""Scales that follow a BatchNorm: while it trains, the weight's codes do not depend on its statistics.

The chip holds w f with a scale s for each output channel, f = gamma / sqrt(var + eps) of the running statistics.  If s
were a number of its own, each batch, by moving var, would move weights across the borders of their codes, many of them
where codes are few.  So the quantizer keeps s' = s / |f|, by which  Q(w f; s' |f|) / f = Q(w; s').
"""

from __future__ import annotations

from math import prod
from typing import Any

from torch import Tensor

from qfunc.quantizers.batch_norm import LEAST, factor_of
from qfunc.specs import FLOAT32, Int, PerChannel, Scheme
from qfunc.specs.protocols import ScalableFunction


def can_track_batch_norm(site: Any, held: tuple[int, ...], norm: Any, groups: int) -> bool:
    """Whether a weight's parameters can be those before it is folded.

    They can where each output channel has a scale of its own that may be any number, which no other site shares, and
    the quantize function knows its parameters for multiples of x.

    Args:
        site: Of the weight.
        held: The shape of its qparams.
        norm: The BatchNorm.
        groups: As in `folded_weight`.
    """
    if not isinstance(site.value, Scheme) or site.tie or groups > 1 or not isinstance(site.function, ScalableFunction):
        return False
    scale = site.value.scale
    free = not (scale.power_of_two or scale.dynamic or scale.within or scale.minimum_range) and scale.format == FLOAT32
    return free and isinstance(scale.shared, PerChannel) and prod(held) == len(norm.running_var)


def is_odd(scheme: Scheme) -> bool:
    """Whether Q(-x) = -Q(x), so that the sign of f changes nothing."""
    held = scheme.format
    symmetric = isinstance(held, Int) and held.qmin == -held.qmax and scheme.zero_point is None
    return symmetric and scheme.rounding in ("half_even", "half_away", "half_to_zero", "trunc")


def batch_norm_factor(norm: Any, held: tuple[int, ...]) -> Tensor:
    """max(|f|, 1e-3) in the shape of the qparams: what the parameters before the fold are multiplied by."""
    return factor_of(norm).abs().clamp(min=LEAST).reshape(held)


__all__ = ["can_track_batch_norm", "batch_norm_factor", "is_odd"]
