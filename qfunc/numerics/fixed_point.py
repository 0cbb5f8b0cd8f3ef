"""Fixed-point requantization: a real multiplier as an integer and a shift, rounded in one or two steps."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.numerics.rounding import round_by


def fixed_multiplier(real: Tensor, bits: int = 31) -> tuple[Tensor, Tensor]:
    """(m, e) with real ~ m * 2^-e and m an integer of `bits` bits, int64; m = round(fraction * 2^bits), half away.

    Source: gemmlowp quantize_multiplier; TFLite QuantizeMultiplier.

    >>> fixed_multiplier(torch.tensor(0.75))
    (tensor(1610612736), tensor(31))
    """
    fraction, exponent = torch.frexp(real.double())
    m = round_by(fraction * 2.0**bits, "half_away").long()
    over = m == 2**bits
    return torch.where(over, m // 2, m), bits - exponent.long() - over.long()


def scale_fixed(acc: Tensor, m: Tensor, e: Tensor, steps: tuple[str, ...] | list[str]) -> Tensor:
    """acc * m * 2^-e in int64 with the roundings of `specs.FixedPoint`.

    One step: R(acc * m / 2^e).  ("srdhm", R): h = (a * m + 2^30) >> 31 with a = acc << max(0, 31-e) and the
    doubling product rounded half away from zero by truncation, then R(h / 2^max(0, e-31)).
    Source: gemmlowp fixedpoint.h (SaturatingRoundingDoublingHighMul, RoundingDivideByPOT).

    >>> scale_fixed(torch.tensor([3]), *fixed_multiplier(torch.tensor(0.5)), ("srdhm", "half_away")).tolist()
    [2]
    """
    acc = acc.long()
    if len(steps) == 1:
        return shift_right(acc * m, e, steps[0])
    a = acc << (31 - e).clamp(min=0)
    product = a * m
    nudge = torch.where(product >= 0, 2**30, 1 - 2**30)
    high = torch.div(product + nudge, 2**31, rounding_mode="trunc")
    return shift_right(high, (e - 31).clamp(min=0), steps[1])


def shift_right(value: Tensor, shift: Tensor, rounding: str) -> Tensor:
    """R(value / 2^shift) of int64 values, exact.

    >>> shift_right(torch.tensor([-3, 3]), torch.tensor(1), "half_up").tolist()
    [-1, 2]
    """
    whole = value >> shift
    rest = value - (whole << shift)
    half = torch.where(shift > 0, torch.ones_like(shift) << (shift - 1).clamp(min=0), torch.ones_like(shift))
    tie, above = (rest == half) & (shift > 0), rest > half
    up = {
        "half_up": tie,
        "half_down": torch.zeros_like(tie),
        "half_away": tie & (value >= 0),
        "half_to_zero": tie & (value < 0),
        "half_even": tie & (whole % 2 != 0),
        "negative_ceil_else_half_even": tie & ((value < 0) | (whole % 2 != 0)),
    }
    if rounding == "floor":
        return whole
    if rounding == "trunc":
        return whole + ((value < 0) & (rest > 0)).long()
    return whole + (above | up[rounding]).long()
