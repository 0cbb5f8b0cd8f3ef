"""Requantization of accumulators to codes, with the arithmetic of each kind of kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qfunc.numerics.kernels import fixed_point, integer
from qfunc.numerics.rounding import round_by


def dequantize_acc(acc: Tensor, m: Tensor, bias: Tensor, fused: bool, divides: bool = False) -> Tensor:
    """Return acc * m + bias in float32, with one rounding for both or two, or acc / m + bias: see `specs.FloatRequantize`."""
    if divides:
        return acc.float() / m + bias
    return integer.fma(acc.float(), m, bias) if fused else acc.float() * m + bias


def clamp_to_bounds(value: Tensor, bounds: Sequence[tuple[float | None, float | None]]) -> Tensor:
    """Return `value` clamped to each pair of bounds in turn, as activations do."""
    for least, most in bounds:
        value = value.clamp(least, most)
    return value


def requantize_offset(
    acc: Tensor, m: Tensor, offset: Tensor, zero_point: int, low: int, high: int, rounding: str, place: str, fused: bool
) -> Tensor:
    """Return clamp(R(acc*M + bias/s_y) + z): a float bias, fused with the product or not."""
    offset = offset + zero_point if place == "before" else offset
    value = integer.fma(acc.float(), m, offset) if fused else acc.float() * m + offset
    return (round_by(value, rounding, low) + (0 if place == "before" else zero_point)).clamp(low, high)


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
