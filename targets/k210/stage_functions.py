"""Requantization in two stages: the numbers of `specs.Stages`, and the codes that they give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qfunc.numerics.kernels.fixed_point import shift_right
from qfunc.numerics.rounding import round_by
from qfunc.specs.arithmetic.stages import ScaleStage, SegmentStage

Segment = tuple[int, int, int, int]
"""(start x, multiplier n, shift f, addend c)."""

SLOPE_BITS = 16
"""The width of n, with its sign; n 2^-f is a power of two, which every width holds (nncase, runtime_types.h)."""


class StageNumbers(NamedTuple):
    """The numbers of one unit: m, e and b for each output channel in int64, the segments, and k of s_v = s_y 2^-k."""

    multiplier: Tensor
    shift: Tensor
    addend: Tensor
    segments: tuple[Segment, ...]
    headroom: int


def stage_numbers(
    first: ScaleStage,
    then: SegmentStage,
    ratio: Tensor,
    offset: Tensor,
    largest: Tensor,
    codes: tuple[int, int, int],
    ends: tuple[int, int],
) -> StageNumbers | None:
    """Return the numbers of a unit, or None if even s_v = s_y is too fine for the widths of the stages.

    Args:
        first, then: The widths and roundings of the stages.
        ratio: s_x s_w / s_y for each output channel, in float64.
        offset: bias / s_y for each output channel, in float64.
        largest: The largest |acc| for each output channel.
        codes: The zero point, the lowest and the highest code of the output within fused activations.
        ends: The lowest and the highest code of the output's format.
    """
    ratio, offset, largest = (t.double().flatten() for t in (ratio, offset, largest))

    def fits(k: int) -> bool:
        m, b = ratio.abs() * 2.0**k, offset.abs() * 2.0**k
        narrow = bool((m < 2.0 ** (first.bits - 1) - 1).all() and (b < 2.0 ** (first.addend - 1) - 1).all())
        return narrow and bool((largest * m + b + 2 < 2.0 ** (first.value - 1)).all()) and _starts_fit(k)

    def _starts_fit(k: int) -> bool:
        zero, low, high = codes
        return max(abs(low - zero), abs(high - zero)) * 2.0**k < 2.0 ** (first.value - 1)

    headroom = next((k for k in range(then.shift, -1, -1) if fits(k)), None)
    if headroom is None:
        return None
    zero, low, high = codes
    multiplier, shift = multipliers(ratio * 2.0**headroom, first.bits, first.shift)
    n, f = (int(t) for t in multipliers(torch.tensor(2.0**-headroom, dtype=torch.float64), SLOPE_BITS, then.shift))
    segments: list[Segment] = [(-(2 ** (first.value - 1)), 0, 0, low), ((low - zero) << headroom, n, f, low)]
    if high < ends[1]:
        segments.append(((high - zero) << headroom, 0, 0, high))
    return StageNumbers(multiplier, shift, round_by(offset * 2.0**headroom, "half_even").long(), tuple(segments), headroom)


def multipliers(real: Tensor, bits: int, largest_shift: int) -> tuple[Tensor, Tensor]:
    """Return (m, e) in int64 with real ~ m * 2^-e: |m| < 2^(bits - 1), and the largest e up to `largest_shift`.

    >>> multipliers(torch.tensor([0.75, 2.0**-10]), 8, 12)
    (tensor([96,  4]), tensor([ 7, 12]))
    """
    _, exponent = torch.frexp(real.double())
    e = (bits - 1 - exponent.long()).clamp(max=largest_shift)
    m = round_by(real.double() * torch.exp2(e.double()), "half_even").long()
    overflow = m.abs() == 2 ** (bits - 1)
    return torch.where(overflow, m // 2, m), e - overflow.long()


def requantize_stages(
    acc: Tensor, m: Tensor, e: Tensor, b: Tensor, segments: Sequence[Segment], roundings: Sequence[str], low: int, high: int
) -> Tensor:
    """Return clamp(R((v - x) n 2^-f) + c) with v = R(acc m 2^-e) + b: see `specs.Stages`."""
    value = shift_right(acc.long() * m, e, roundings[0]) + b
    codes = torch.zeros_like(value)
    for start, multiplier, shift, addend in segments:
        line = shift_right((value - start) * multiplier, torch.tensor(shift), roundings[1]) + addend
        codes = torch.where(value > start, line, codes)
    return codes.clamp(low, high).float()


def largest_sums(low: Tensor, high: Tensor) -> Tensor:
    """Return the largest absolute value of sums between two bounds."""
    return torch.maximum(low.abs(), high.abs())
