"""Round to small floats of a sign, a few exponent bits and a few mantissa bits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.numerics._grads import reinterpreted
from qfunc.numerics.rounding import round_by
from qfunc.specs import Float


def nearest(x: Tensor, fmt: Float, rounding: str = "half_even", noise: Tensor | None = None) -> Tensor:
    """Return x rounded to the values of a small float: R(x / u) * u with u = 2^(max(e(x), emin) - mantissa).

    e(x) is floor(log2|x|), emin the exponent of the smallest normal value.  Results beyond the largest value
    become that value if the format saturates or has neither infinity nor NaN; otherwise infinity, or NaN if the
    format has no infinity.  In an unsigned format negative numbers become the smallest value, or NaN.

    Args:
        x: In units of the scale, any shape; float64 is computed in float64, other dtypes in float32 if the format
            fits.  Subnormals are exact, NaN stays NaN.
        rounding: R, a name of `specs.ROUNDINGS`; not one on the index, because floats have none.
        noise: The shape of x, uniform in [0, 1), for "stochastic".
    Returns:
        Values of the format in the dtype of x; -0.0 where the format has it.
    Raises:
        SpecError: a rounding on the index, missing noise, or a format with values beyond float64.
    Source: OCP 8-bit Floating Point Specification 1.0, section 5; OCP Microscaling Formats 1.0, section 5.3.

    >>> nearest(torch.tensor([0.3, 17.5, 1e4]), Float(4, 3, max=448.0)).tolist()
    [0.3125, 18.0, 448.0]
    """
    if rounding.endswith("_on_index"):
        raise SpecError(
            where="minifloat.nearest", found=repr(rounding), wanted="a rounding of values", do="Use another rounding."
        )
    wide = _to_compute_dtype(x, fmt)
    if fmt.mantissa >= _LAYOUT[wide.dtype][1] and smallest_exponent(fmt) <= 2 - _LAYOUT[wide.dtype][2]:
        value = wide  # the format contains every value of the dtype
    else:
        unit = _unit(wide, fmt)
        # The quotient by a power of two is exact; a product with 1/u would overflow for bfloat16's subnormals.
        value = round_by(wide / unit, rounding, 0, noise).mul_(unit)
    if fmt.signed and fmt.negative_zero and rounding not in ("half_even", "floor", "trunc"):
        value = torch.copysign(value, wide)  # these three keep the sign of values that become 0
    return _saturate(value, wide, fmt).to(x.dtype)


def power_of_two(exponent: Tensor) -> Tensor:
    """Return 2^n in float64 for -1022 <= n <= 1023; it is built from its bits, so it is exact.

    >>> power_of_two(torch.tensor([-1, 10])).tolist()
    [0.5, 1024.0]
    """
    return reinterpreted(exponent.long() + 1023 << 52, torch.float64)


def bias_of(fmt: Float) -> int:
    """Return the exponent bias: 2^(exponent-1) - 1 unless the format sets another."""
    return (1 << fmt.exponent - 1) - 1 if fmt.bias is None else fmt.bias


def without_zero(fmt: Float) -> bool:
    """Return True if exponent field 0 is a power of two like the others: unsigned formats without mantissa, E8M0."""
    return not fmt.signed and not fmt.mantissa


def smallest_exponent(fmt: Float) -> int:
    """Return emin, the exponent of the smallest normal value and of the subnormals.

    >>> smallest_exponent(Float(4, 3, max=448.0)), smallest_exponent(Float(8, 0, signed=False))
    (-6, -127)
    """
    return (0 if without_zero(fmt) else 1) - bias_of(fmt)


def smallest(fmt: Float) -> float:
    """Return the smallest positive value, 2^(emin - mantissa).

    >>> smallest(Float(4, 3, max=448.0)) == 2.0**-9
    True
    """
    return 2.0 ** (smallest_exponent(fmt) - fmt.mantissa)


def largest(fmt: Float) -> float:
    """Return the largest finite value: `max`, or IEEE's, which reserves the highest exponent for infinity and NaN.

    >>> largest(Float(5, 10)), largest(Float(4, 3, max=448.0))
    (65504.0, 448.0)
    """
    return fmt.max if fmt.max is not None else (2 - 2.0**-fmt.mantissa) * 2.0 ** ((1 << fmt.exponent) - 2 - bias_of(fmt))


def has_infinity(fmt: Float) -> bool:
    """Return True if the highest exponent is reserved for infinity and NaN, as in IEEE 754 and E5M2.

    >>> has_infinity(Float(5, 2, max=57344.0)), has_infinity(Float(4, 3, max=448.0))
    (True, False)
    """
    highest = (1 << fmt.exponent) - 1 - bias_of(fmt)
    return bool(fmt.mantissa) and fmt.negative_zero and math.frexp(largest(fmt))[1] <= highest


def has_nan(fmt: Float) -> bool:
    """Return True if a code is NaN: -0 in the FNUZ variants, or a code above the largest value.

    >>> has_nan(Float(4, 3, max=448.0)), has_nan(Float(2, 1, max=6.0))
    (True, False)
    """
    fraction, exponent = math.frexp(largest(fmt))
    full = exponent - 1 == (1 << fmt.exponent) - 1 - bias_of(fmt) and 2 * fraction == 2 - 2.0**-fmt.mantissa
    return not fmt.negative_zero or not full


def saturates(fmt: Float) -> bool:
    """Return True if overflow becomes the largest value: by choice, or because there is no infinity or NaN."""
    return fmt.saturate or not has_nan(fmt)


_LAYOUT = {torch.float32: (torch.int32, 23, 128), torch.float64: (torch.int64, 52, 1024)}
"""For each dtype: the integer dtype of its bits, the mantissa bits, and the first exponent that overflows."""


def _to_compute_dtype(x: Tensor, fmt: Float) -> Tensor:
    # x in the narrowest dtype in which the format's normal values are normal.
    low, high = smallest_exponent(fmt), _exponent_above(fmt)
    for dtype in (torch.float32, torch.float64):
        _, digits, beyond = _LAYOUT[dtype]
        fits = 2 - beyond <= low and 2 - beyond - digits <= low - fmt.mantissa and high <= beyond
        if fits and not (dtype == torch.float32 and x.dtype == torch.float64):
            return x.to(dtype)
    wanted, do = "a format with values that fit into float64", "Use another bias, or fewer mantissa bits."
    raise SpecError(where="minifloat.nearest", found=repr(fmt), wanted=wanted, do=do)


def _exponent_above(fmt: Float) -> int:
    # The smallest n for which every value is below 2^n.
    return (1 << fmt.exponent) - 1 - bias_of(fmt) if fmt.max is None else math.frexp(fmt.max)[1]


def _unit(x: Tensor, fmt: Float) -> Tensor:
    # u from the exponent field of x: masking off the mantissa leaves a power of two.
    ints, digits, beyond = _LAYOUT[x.dtype]
    lowest, highest = smallest_exponent(fmt) + beyond - 1, 2 * beyond - 2
    field = (reinterpreted(x, ints) & (highest + 1 << digits)).clamp(lowest << digits, highest << digits)
    return reinterpreted(field, x.dtype) * 2.0**-fmt.mantissa


def _saturate(value: Tensor, x: Tensor, fmt: Float) -> Tensor:
    top = largest(fmt)
    lowest = -top if fmt.signed else smallest(fmt) if without_zero(fmt) else 0.0
    if saturates(fmt):
        value = value.clamp(lowest, top)
    else:
        value = torch.where(value.abs() > top, value * (math.inf if has_infinity(fmt) else math.nan), value)
    if not saturates(fmt) and not fmt.signed:
        invalid = x <= 0 if without_zero(fmt) else x < 0
        value = torch.where(invalid, math.nan, value.clamp(min=lowest))
    return value if fmt.negative_zero and fmt.signed else value + 0.0  # -0 becomes +0
