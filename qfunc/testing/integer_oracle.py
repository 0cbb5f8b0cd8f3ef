"""Oracles of integer kernels in exact rational arithmetic: accumulators, requantization, multiply-adds, fixed point.

One accumulator at a time, in Python integers and `fractions.Fraction`; imports neither torch nor numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import frexp, isfinite, trunc

from qfunc.testing.oracle import Number, clamp, float32, rounded


def multiplier(scale_a: Number, scale_b: Number, scale: Number) -> Fraction:
    """Return M = float32(float32(s_a * s_b) / s) of float32 scales.

    >>> multiplier(0.5, 0.25, 1.0)
    Fraction(1, 8)
    """
    return float32(float32(Fraction(scale_a) * Fraction(scale_b)) / Fraction(scale))


def requantize(
    acc: int, m: Number, zero_point: int, low: int, high: int, rounding: str = "half_even", place: str = "after"
) -> int:
    """Return the code of an accumulator: clamp(R(v) + z), v = float32(float32(acc) * M); "before": clamp(R(float32(v + z))).

    >>> requantize(5, 0.5, 1, 0, 255), requantize(5, 0.5, 1, 0, 255, place="before")
    (3, 4)
    """
    v = float32(float32(acc) * Fraction(m))
    if place == "before":
        return clamp(rounded(float32(v + zero_point), rounding, low), low, high)
    return clamp(rounded(v, rounding, low - zero_point) + zero_point, low, high)


def wrap(value: int, bits: int) -> int:
    """Return an integer as `bits` bits of two's complement hold it: modulo 2^bits.

    >>> wrap(128, 8), wrap(-129, 8)
    (-128, 127)
    """
    half: int = 1 << bits - 1
    return (value + half) % (2 * half) - half


def saturate(value: int, bits: int) -> int:
    """Return an integer clamped to `bits` bits of two's complement.

    >>> saturate(128, 8), saturate(-129, 8)
    (127, -128)
    """
    return clamp(value, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def saturating_sum(terms: Sequence[int], bits: int, start: int = 0, last: int = 0, together: int = 1) -> int:
    """Return start + terms + last, each addition clamped; `together` successive terms are added exactly first.

    >>> saturating_sum([100, 100, -100], 8), saturating_sum([100, 100, -100], 8, together=3)
    (27, 100)
    """
    total = saturate(start, bits)
    for at in range(0, len(terms), together):
        total = saturate(total + sum(terms[at : at + together]), bits)
    return saturate(total + last, bits)


def fma(a: Number, b: Number, c: Number) -> Fraction:
    """Return float32(a*b + c) with one rounding.

    >>> fma(1 + 2.0**-12, 1 + 2.0**-12, -1) == Fraction(1, 2**11) + Fraction(1, 2**24)
    True
    """
    return float32(Fraction(a) * Fraction(b) + Fraction(c))


def sum_fma(
    a: int, scale_a: Number, zero_a: int, b: int, scale_b: Number, zero_b: int,
    scale: Number, zero_point: int, low: int, high: int, rounding: str = "half_even",
) -> int:  # fmt: skip
    """Return the code of a + b by fused multiply-adds: clamp(R(fma(a, r_a, fma(b, r_b, f)))).

    r_a = float32(s_a / s), r_b = float32(s_b / s), f = float32(z - fma(r_a, z_a, float32(r_b * z_b))).
    Source: ONNX Runtime mlas/lib/qladd.cpp.

    >>> sum_fma(3, 0.5, 1, 5, 0.5, 1, 1.0, 0, 0, 255)
    3
    """
    r_a, r_b = float32(Fraction(scale_a) / Fraction(scale)), float32(Fraction(scale_b) / Fraction(scale))
    f = float32(zero_point - fma(r_a, zero_a, float32(r_b * zero_b)))
    return clamp(rounded(fma(a, r_a, fma(b, r_b, f)), rounding, low), low, high)


def fixed_multiplier(real: float, bits: int = 31) -> tuple[int, int]:
    """Return (m, e) with real ~ m * 2^-e: real = f * 2^x, 1/2 <= f < 1, m = R_away(f * 2^bits), e = bits - x.

    m = 2^bits becomes 2^(bits-1) with e reduced by 1; below 2^-32 the multiplier is (0, bits).

    Raises:
        ValueError: not finite, or negative.
    Source: TFLite QuantizeMultiplier.

    >>> fixed_multiplier(0.75)
    (1610612736, 31)
    """
    if not isfinite(real) or real < 0:
        raise ValueError(f"real={real} must be finite and not negative")
    fraction, exponent = frexp(real)
    m = rounded(Fraction(fraction) * 2**bits, "half_away")
    if m == 2**bits:
        m, exponent = m // 2, exponent + 1
    return (0, bits) if exponent < -31 else (m, bits - exponent)


def srdhm(a: int, b: int) -> int:
    """Return the saturating rounding doubling high multiply of int32: (a*b + 2^30 or 1 - 2^30) / 2^31, truncated.

    The nudge has the sign of the product; a = b = -2^31 saturates to 2^31 - 1.
    Source: gemmlowp fixedpoint.h.

    >>> srdhm(3, 2**30), srdhm(-3, 2**30), srdhm(-(2**31), -(2**31))
    (2, -1, 2147483647)
    """
    product = a * b
    nudged = product + (2**30 if product >= 0 else 1 - 2**30)
    return min(trunc(Fraction(nudged, 2**31)), 2**31 - 1)


def scale_fixed(acc: int, m: int, e: int, steps: Sequence[str]) -> int:
    """Return acc * m * 2^-e by the steps of `specs.FixedPoint`: (R,) at once, or ("srdhm", R) in two roundings.

    >>> scale_fixed(3, *fixed_multiplier(0.5), ("srdhm", "half_away")), scale_fixed(-3, 2**30, 31, ("half_up",))
    (2, -1)
    """
    if len(steps) == 1:
        return shift_right(acc * m, e, steps[0])
    return shift_right(srdhm(acc * 2 ** max(0, 31 - e), m), max(0, e - 31), steps[1])


def shift_right(value: int, shift: int, rounding: str) -> int:
    """Return R(value / 2^shift).

    >>> shift_right(-3, 1, "half_up"), shift_right(-3, 1, "half_away")
    (-1, -2)
    """
    return rounded(Fraction(value, 2**shift), rounding)


__all__ = [
    "fixed_multiplier", "fma", "multiplier", "requantize", "saturate", "saturating_sum", "scale_fixed", "shift_right",
    "srdhm", "sum_fma", "wrap",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
