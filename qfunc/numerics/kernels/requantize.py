"""Requantization of accumulators to codes, with the arithmetic of each kind of kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qfunc.numerics.kernels import fixed_point, integer
from qfunc.numerics.rounding import round_by

SMALLEST_BIAS = 1e-30
"""The bias in the file of a product that has none, or zeros: without it, OpenVINO computes some products wrongly."""


def dequantize_acc(acc: Tensor, m: Tensor, bias: Tensor, fused: bool, divides: bool = False) -> Tensor:
    """Return acc * m + bias, with one rounding for both or two, or acc / m + bias: see `specs.FloatRequantize`.

    Each step is in the type of m; the result is float32.
    """
    if divides:
        return acc.float() / m + bias
    return integer.fma(acc.float(), m, bias) if fused else (acc.to(m.dtype) * m + bias).float()


def clamp_to_bounds(value: Tensor, bounds: Sequence[tuple[float | None, float | None]]) -> Tensor:
    """Return `value` clamped to each pair of bounds in turn, as activations do."""
    for least, most in bounds:
        value = value.clamp(least, most)
    return value


def requantize_offset(
    acc: Tensor, m: Tensor, offset: Tensor, zero_point: int, low: int, high: int, rounding: str, place: str, fused: bool
) -> Tensor:
    """Return clamp(R(acc*M + bias/s_y) + z): a float bias, fused with the product or not; in the type of M."""
    offset = offset + zero_point if place == "before" else offset
    value = integer.fma(acc.float(), m, offset) if fused else acc.to(m.dtype) * m + offset
    return (round_by(value, rounding, low) + (0 if place == "before" else zero_point)).clamp(low, high).float()


def requantize_through_real(
    acc: Tensor,
    m: Tensor,
    bias: Tensor,
    scale: float,
    zero_point: int,
    low: int,
    high: int,
    rounding: str,
    fused: bool,
    division: bool,
    bounds: Sequence[tuple[float | None, float | None]] = (),
    other: Tensor | None = None,
    divides: bool = False,
) -> Tensor:
    """Return quantize(clamp(acc * s_x*s_w + bias) + other): see `specs.FloatRequantize`."""
    value = clamp_to_bounds(dequantize_acc(acc, m, bias, fused, divides), bounds)
    value = value if other is None else value + other
    return integer.quantize_codes(value, scale, zero_point, low, high, rounding, division)


def requantize_fixed(acc: Tensor, m: Tensor, e: Tensor, steps: list[str], zero_point: int, low: int, high: int) -> Tensor:
    """Return clamp(steps(acc * m * 2^-e) + z): see `specs.FixedPoint`."""
    return (fixed_point.scale_fixed(acc, m, e, steps) + zero_point).clamp(low, high).float()


def requantize_gemv(
    acc: Tensor, m: Tensor, e: Tensor, steps: list[str], vector: list[str], channels: int, zero_point: int, low: int, high: int
) -> Tensor:
    """Return `requantize_fixed`, with the steps `vector` for one row of `channels`: see `specs.FixedPointGemv`."""
    return requantize_fixed(acc, m, e, vector if acc.numel() == channels else steps, zero_point, low, high)


def requantize_lanes(
    acc: Tensor, m: Tensor, e: Tensor, steps: list[str], rest: list[str], lanes: int, zero_point: int, low: int, high: int
) -> Tensor:
    """Return `requantize_fixed`, with the steps `rest` for the remainder of the channels: see `specs.FixedPointLanes`."""
    whole = acc.shape[1] // lanes * lanes
    parts = []
    for part, how in ((slice(whole), steps), (slice(whole, None), rest)):
        pair = (m, e) if m.ndim == 0 else (m[part], e[part])
        parts.append(requantize_fixed(acc[:, part], *pair, how, zero_point, low, high))
    return torch.cat(parts, 1)


def requantize_shift(acc: Tensor, shift: Tensor, zero_point: int, low: int, high: int, rounding: str) -> Tensor:
    """Return clamp(R(acc * 2^-k) + z): see `specs.Shift`; a negative k shifts left."""
    left = acc.long() << (-shift).clamp(min=0)
    return (fixed_point.shift_right(left, shift.clamp(min=0), rounding) + zero_point).clamp(low, high).float()


def add_fractional_bias(acc: Tensor, bias: Tensor, bits: int, spatial: int) -> Tensor:
    """Return acc * 2^bits + bias, exact in float64: an accumulator with fractional bits, for biases that need them."""
    return acc.double() * 2.0**bits + bias.double().reshape(-1, *[1] * spatial)


def range_ends(scale: float | Tensor, zero_point: int | Tensor, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Return the ends l = s (low - z) and h = s (high - z) of a range, in float32; l is rounded from h - s n, n = high - low.

    >>> [end.item() for end in range_ends(0.5, 0, -128, 127)]
    [-64.0, 63.5]
    """
    s = torch.as_tensor(scale, dtype=torch.float64)
    top = s * (high - zero_point)
    return (top - s * (high - low)).float(), top.float()


def range_step(scale: float | Tensor, zero_point: int | Tensor, low: int, high: int) -> Tensor:
    """Return (h - l) / n in float32: the scale, but for its last bit.

    >>> range_step(0.5, 0, -128, 127).item()
    0.5
    """
    least, most = range_ends(scale, zero_point, low, high)
    return (most - least) / (high - low)


def weight_codes(low: int, high: int) -> tuple[int, int]:
    """Return the ends of a weight's codes: those of 256 or 255 levels for narrower formats.

    >>> weight_codes(-64, 63), weight_codes(-64, 64), weight_codes(0, 15)
    ((-128, 127), (-127, 127), (0, 255))
    """
    if high - low + 1 >= 255:
        return low, high
    return (0, 255) if low >= 0 else (-127 if low == -high else -128, 127)


def quantize_by_range(x: Tensor, scale: float | Tensor, zero_point: int | Tensor, low: int, high: int) -> Tensor:
    """Return the codes of real values: see `specs.QuantizeRange`.

    >>> quantize_by_range(torch.tensor([0.25, 0.75, 99.0]), 0.5, 0, -128, 127).tolist()
    [0.0, 2.0, 127.0]
    """
    least, most = range_ends(scale, zero_point, low, high)
    r, c = _levels(least, most, high - low)
    return torch.round(integer.fma(x.float().clamp(least, most), r, c)) + low


def requantize_by_range(
    acc: Tensor,
    m: Tensor,
    bias: Tensor,
    scale: float,
    zero_point: int,
    ends: tuple[int, int],
    clamp: tuple[int, int],
    shifted: bool,
    clipped: bool,
    bounds: Sequence[tuple[float | None, float | None]] = (),
    other: Tensor | None = None,
) -> Tensor:
    """Return the codes of clamp(acc*m + bias) + other real values: see `FloatRequantize(by_range=True)` of `specs`.

    Args:
        ends: The lowest and the highest code.
        clamp: The codes that activations leave.
        shifted: The result is stored as the index of its level, q - qmin.
        clipped: Some activation has an upper bound.
    """
    value = clamp_to_bounds(acc.float() * m + bias, bounds)
    value = value if other is None else value + other
    return _at_levels(value, range_ends(scale, zero_point, *ends), ends, clamp, shifted, clipped)


def add_by_range(
    acc: Tensor,
    m: Tensor,
    bias: Tensor,
    bounds: Sequence[tuple[float | None, float | None]],
    other: tuple[Tensor, float, int, int, int, bool],
    scale: float,
    zero_point: int,
    ends: tuple[int, int],
    clamp: tuple[int, int],
    shifted: bool,
    clipped: bool,
) -> Tensor:
    """Return the codes of clamp(acc*m + bias) + other codes: see `FloatRequantize(by_range=True)` of `specs`.

    The sum is computed in steps t of `other`, v (1/t) + q - z, and the ends are divided by t.  Codes that are stored as
    q - qmin are added so: (v - c t)(1/t) + q - qmin.

    Args:
        other: The codes, their scale, zero point, lowest and highest code, and whether they are stored as q - qmin.
        shifted, clipped: As of `requantize_by_range`.
    """
    codes, scale_of_other, zero_of_other, lowest, highest, stored_shifted = other
    qparams = scale_of_other, zero_of_other, lowest, highest
    step, value = range_step(*qparams), clamp_to_bounds(acc.float() * m + bias, bounds)
    if stored_shifted:
        _, shift = _levels(*range_ends(*qparams), highest - lowest)
        value = (value - shift * step) * step.reciprocal() + (codes.float() - lowest)
    else:
        value = value * step.reciprocal() + (codes.float() - zero_of_other)
    least, most = range_ends(scale, zero_point, *ends)
    return _at_levels(value, (least / step, most / step), ends, clamp, shifted, clipped)


def _at_levels(
    value: Tensor, range_: tuple[Tensor, Tensor], ends: tuple[int, int], clamp: tuple[int, int], shifted: bool, clipped: bool
) -> Tensor:
    # The codes of the nearest levels.
    r, c = _levels(*range_, ends[1] - ends[0])
    if shifted and c:
        return (torch.round(integer.fma(value, r, c)) + ends[0]).clamp(*clamp)
    return torch.round(value * (r if clipped else 1 / (1 / r))).clamp(*clamp)


def _levels(least: Tensor, most: Tensor, n: int) -> tuple[Tensor, Tensor]:
    # (r, c): the index of the level of x is x r + c.  A number over a tensor would be the reciprocal times the number.
    width, levels = most - least, torch.tensor(float(n))
    return levels / width, -least * levels / width
