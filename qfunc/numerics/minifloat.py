"""Small floats: the nearest value that a sign, a few exponent and a few mantissa bits can hold."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qfunc.numerics.rounding import round_by
from qfunc.specs import Float


def largest(fmt: Float) -> float:
    """The largest finite value: `max`, or IEEE's, which keeps the highest exponent for infinity and NaN.

    >>> largest(Float(5, 10)), largest(Float(4, 3, max=448.0))
    (65504.0, 448.0)
    """
    return fmt.max if fmt.max is not None else (2 - 2.0**-fmt.mantissa) * 2.0 ** ((1 << fmt.exponent) - 2 - bias_of(fmt))


def bias_of(fmt: Float) -> int:
    """The exponent bias: 2^(exponent-1) - 1 unless the format says otherwise."""
    return (1 << fmt.exponent - 1) - 1 if fmt.bias is None else fmt.bias


def has_infinity(fmt: Float) -> bool:
    """Whether the highest exponent is kept for infinity and NaN, as in IEEE 754 and E5M2."""
    return largest(fmt) < 2.0 ** ((1 << fmt.exponent) - 1 - bias_of(fmt))


def nearest(x: Tensor, fmt: Float, rounding: str = "half_even", noise: Tensor | None = None) -> Tensor:
    """x rounded to the values of a small float: R(x / u) * u with u = 2^(max(e(x), 1 - bias) - mantissa).

    e(x) is floor(log2|x|).  Beyond `max` the value is +-max if the format saturates, else infinity if it has
    one, else NaN.

    Args:
        x: In units of the scale, float32 or float64.
        rounding: R, a name of `specs.ROUNDINGS`.
    Returns:
        Values of the format in the dtype of x.
    Source: OCP 8-bit Floating Point Specification 1.0, section 5; OCP Microscaling Formats 1.0, section 5.3.

    >>> nearest(torch.tensor([0.3, 17.5, 1e4]), Float(4, 3, max=448.0)).tolist()
    [0.3125, 18.0, 448.0]
    """
    exponent = (torch.frexp(x.double())[1] - 1).clamp(min=1 - bias_of(fmt)) - fmt.mantissa
    step = torch.ldexp(torch.ones_like(x, dtype=torch.float64), exponent)
    value = round_by(x.double() / step, rounding, 0, noise) * step
    value = torch.where(torch.isinf(x), x.double(), value)
    top = largest(fmt)
    over = value.abs() > top
    beyond = top if fmt.saturate else math.inf if has_infinity(fmt) else math.nan
    value = torch.where(over, torch.copysign(torch.full_like(value, beyond), value), value)
    if not fmt.signed:
        value = value.clamp(min=0)
    if not fmt.negative_zero:
        value = value + 0.0
    return value.to(x.dtype)
