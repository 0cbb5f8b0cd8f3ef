"""Scales that follow a BatchNorm: while it trains, the weight's codes do not depend on its statistics.

The chip stores w f with a scale s per output channel, f = gamma / sqrt(var + eps) with the running statistics.  If s
were independent of f, each batch would change var, and weights near the border of two codes would change their codes,
many of them if there are few codes.  So the quantizer stores s' = s / |f|, and  Q(w f; s' |f|) / f = Q(w; s').
"""

from __future__ import annotations

from math import prod
from typing import Any

from torch import Tensor

from qfunc.quantizers.batch_norm import LEAST, factor_of
from qfunc.specs import FLOAT32, Int, PerChannel, Scheme
from qfunc.specs.protocols import ScalableFunction


def can_track_batch_norm(site: Any, shape: tuple[int, ...], norm: Any, groups: int) -> bool:
    """Return True if a weight's parameters can be stored for the weight before folding.

    This needs a separate scale for each output channel that may be any number and that no other site shares, and a
    quantize function with `scaled`, its parameters for multiples of x.

    Args:
        site: The weight's site.
        shape: The shape of its scales.
        norm: The BatchNorm.
        groups: As in `folded_weight`.
    """
    if not isinstance(site.value, Scheme) or site.tie or groups > 1 or not isinstance(site.function, ScalableFunction):
        return False
    scale = site.value.scale
    unrestricted = not (scale.power_of_two or scale.dynamic or scale.within or scale.minimum_range) and scale.format == FLOAT32
    return unrestricted and isinstance(scale.shared, PerChannel) and prod(shape) == len(norm.running_var)


def is_odd(scheme: Scheme) -> bool:
    """Return True if Q(-x) = -Q(x), so that the sign of f has no effect."""
    fmt = scheme.format
    symmetric = isinstance(fmt, Int) and fmt.qmin == -fmt.qmax and scheme.zero_point is None
    return symmetric and scheme.rounding in ("half_even", "half_away", "half_to_zero", "trunc")


def batch_norm_factor(norm: Any, shape: tuple[int, ...]) -> Tensor:
    """Return max(|f|, 1e-3) in the shape of the scales: the factor from the parameters before folding to those after."""
    return factor_of(norm).abs().clamp(min=LEAST).reshape(shape)
