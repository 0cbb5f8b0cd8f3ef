"""Quantization in exact rational arithmetic: the oracle for tensor computations.

One number at a time, in `fractions.Fraction`; imports neither torch nor numpy.  Where hardware computes in
float32, every rounding is explicit: `float32(...)`.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil, floor, trunc

Number = Fraction | int | float

HALF = Fraction(1, 2)


def _even(x: Fraction) -> int:
    return round(x)  # Python rounds halves of a Fraction to even


def _half_up(x: Fraction) -> int:
    return floor(x + HALF)


def _half_down(x: Fraction) -> int:
    return ceil(x - HALF)


_NEAREST: dict[str, Callable[[Fraction], int]] = {
    "half_even": _even,
    "half_up": _half_up,
    "half_down": _half_down,
    "half_away": lambda x: _half_up(x) if x >= 0 else _half_down(x),
    "half_to_zero": lambda x: _half_down(x) if x >= 0 else _half_up(x),
    "negative_ceil_else_half_even": lambda x: _even(x) if x >= 0 else _half_up(x),
}
_DIRECTED: dict[str, Callable[[Fraction], int]] = {"floor": floor, "trunc": trunc}

MODES = (*_NEAREST, *_DIRECTED, "half_even_on_index", "half_up_on_index")
"""The deterministic rounding modes of `specs.ROUNDINGS`."""


def rounded(x: Number, mode: str, low: int = 0) -> int:
    """Return R(x), x rounded to an integer by a named mode; "MODE_on_index" is R(x - low) + low.

    Raises:
        ValueError: an unknown mode.

    >>> [rounded(Fraction(-5, 2), m) for m in ("half_even", "half_away", "half_up", "floor", "trunc")]
    [-2, -3, -2, -3, -2]
    """
    if mode not in MODES:
        raise ValueError(f"unknown rounding mode {mode!r}; known: {', '.join(MODES)}")
    origin = low if mode.endswith("_on_index") else 0
    return (_NEAREST | _DIRECTED)[mode.removesuffix("_on_index")](Fraction(x) - origin) + origin


def step_distance(x: Number, mode: str) -> Fraction:
    """Return the distance of x from the nearest number where R jumps: a tie n + 1/2, or an integer for floor and trunc.

    >>> step_distance(Fraction(7, 10), "half_even"), step_distance(Fraction(7, 10), "floor")
    (Fraction(1, 5), Fraction(3, 10))
    """
    moved = Fraction(x) + (0 if mode in _DIRECTED else HALF)
    return min(moved - floor(moved), ceil(moved) - moved)


def float32(x: Number) -> Fraction:
    """Return the float32 nearest to x, ties to even, subnormals included: IEEE 754 binary32.

    x = k * 2^e with 2^23 <= |k| < 2^24, or e = -149; the result is R_even(k) * 2^e.

    Raises:
        OverflowError: |x| rounds to 2^128 or more.

    >>> float(float32(0.1)), float32(1 + Fraction(1, 2**24))
    (0.10000000149011612, Fraction(1, 1))
    """
    x = Fraction(x)
    if x == 0:
        return x
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
    while abs(x) < _power(exponent):
        exponent -= 1
    while abs(x) >= _power(exponent + 1):
        exponent += 1
    unit = _power(max(exponent - 23, -149))
    result = _even(x / unit) * unit
    if abs(result) >= _power(128):
        raise OverflowError(f"{float(x)} does not fit into float32")
    return result


def ulp32(x: Number) -> Fraction:
    """Return the distance of float32 numbers in the binade of x: 2^(e-23) with 2^e <= |x| < 2^(e+1).

    >>> ulp32(1), ulp32(0) == Fraction(1, 2**149)
    (Fraction(1, 8388608), True)
    """
    x = abs(Fraction(x))
    exponent = -126
    while x >= _power(exponent + 1):
        exponent += 1
    return _power(exponent - 23)


def _power(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


def clamp(x: int, low: int, high: int) -> int:
    """Return max(low, min(x, high)).

    >>> clamp(300, 0, 255)
    255
    """
    return max(low, min(x, high))


def quantize(x: Number, scale: Number, zero_point: int, low: int, high: int, rounding: str = "half_even") -> int:
    """Return the code of x, clamp(R(x / s) + z, low, high), with an exact quotient.

    x is a real number, s the scale in real units per code, z the zero point and low, high the extreme codes.
    "MODE_on_index" rounds the index x / s + z - low.

    Raises:
        ValueError: a scale that is not positive.

    >>> quantize(0.75, 0.5, 3, 0, 255)
    5
    """
    if Fraction(scale) <= 0:
        raise ValueError(f"scale={scale} must be positive")
    return clamp(rounded(Fraction(x) / Fraction(scale), rounding, low - zero_point) + zero_point, low, high)


def dequantize(code: int, scale: Number, zero_point: int) -> Fraction:
    """Return the real value of a code: (q - z) * s, exact.

    >>> dequantize(5, 0.5, 3)
    Fraction(1, 1)
    """
    return (code - zero_point) * Fraction(scale)


def power_of_two_above(x: Number) -> Fraction:
    """Return the smallest power of two that is at least x.

    Raises:
        ValueError: x is not positive.

    >>> power_of_two_above(Fraction(3, 16)), power_of_two_above(4)
    (Fraction(1, 4), Fraction(4, 1))
    """
    x = Fraction(x)
    if x <= 0:
        raise ValueError(f"x={x} must be positive")
    exponent = x.numerator.bit_length() - x.denominator.bit_length() - 1
    while _power(exponent) < x:
        exponent += 1
    return _power(exponent)


def scale_of_range(
    low: Number, high: Number, qmin: int, qmax: int, *, symmetric: bool, divisor: str = "qmax", value: int | None = None,
    power_of_two: bool = False, smallest: Number | None = None, largest: Number | None = None, minimum_range: Number = 0,
) -> Fraction:  # fmt: skip
    """Return the exact scale of a range extended to include 0, before rounding to float32.

    Affine: (high - low) / (qmax - qmin), or with a zero point fixed at z = `value` the smallest s with
    (qmin - z)*s <= low and high <= (qmax - z)*s.  Symmetric: max(-low, high) / d, or high / d if
    qmin >= 0.  1 if that is below the smallest normal float32; then rounded up to a power of two, then clamped to
    [smallest, largest].

    >>> scale_of_range(-1, Fraction(41, 10), 0, 255, symmetric=False)
    Fraction(1, 50)
    """
    low, high = min(Fraction(low), Fraction(0)), max(Fraction(high), Fraction(0))
    high = max(high, low + Fraction(minimum_range))
    if symmetric:
        low = low if qmin < 0 else Fraction(0)
        scale = (
            max(-low, high)
            / {"qmax": Fraction(qmax), "half_range": Fraction(qmax - qmin, 2), "-qmin": Fraction(-qmin)}[divisor]
        )
    elif value is not None:
        sides = ((-low, value - qmin), (high, qmax - value))
        scale = max(room / codes if codes else Fraction(0) for room, codes in sides)
    else:
        scale = (high - low) / (qmax - qmin)
    scale = scale if scale >= _power(-126) else Fraction(1)
    scale = power_of_two_above(scale) if power_of_two else scale
    scale = scale if smallest is None else max(scale, Fraction(smallest))
    return scale if largest is None else min(scale, Fraction(largest))


def zero_of_range(low: Number, scale: Number, qmin: int, qmax: int, rounding: str = "half_even") -> int:
    """Return the zero point of an affine range, clamp(R(qmin - min(low, 0) / s), qmin, qmax), with an exact quotient.

    >>> zero_of_range(-1, Fraction(1, 50), 0, 255)
    50
    """
    return clamp(rounded(qmin - min(Fraction(low), Fraction(0)) / Fraction(scale), rounding), qmin, qmax)


__all__ = [
    "HALF", "MODES", "Number", "clamp", "dequantize", "float32", "power_of_two_above", "quantize", "rounded",
    "scale_of_range", "step_distance", "ulp32", "zero_of_range",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
