"""Fixed-point requantization: multiply by an integer and a shift, rounding in one or two steps."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.numerics.rounding import round_by


def fixed_multiplier(real: Tensor, bits: int = 31) -> tuple[Tensor, Tensor]:
    """Return (m, e) with real ~ m * 2^-e and m an integer of `bits` bits, int64; m = round(fraction * 2^bits), half away.

    A multiplier below 2^-32 is (0, bits).

    Source: gemmlowp quantize_multiplier; TFLite QuantizeMultiplier.

    >>> fixed_multiplier(torch.tensor(0.75))
    (tensor(1610612736), tensor(31))
    """
    fraction, exponent = torch.frexp(real.double())
    m = round_by(fraction * 2.0**bits, "half_away").long()
    overflow = m == 2**bits
    m, e = torch.where(overflow, m // 2, m), bits - exponent.long() - overflow.long()
    tiny = e > bits + 31
    return m.masked_fill(tiny, 0), e.masked_fill(tiny, bits)


def reduced_multiplier(m: Tensor, e: Tensor, bits: int, reduced: int) -> tuple[Tensor, Tensor]:
    """Return (m', e') of `reduced` bits: m' = min(floor(m / 2^k + 1/2), 2^reduced - 1) and e' = e - k, with k = bits - reduced.

    Source: CMSIS-NN arm_nnsupportfunctions.h, REDUCE_MULTIPLIER; TFLite common.cc, MultiplyByQuantizedMultiplier of int64.

    >>> reduced_multiplier(torch.tensor([2**30 + 2**15, 2**31 - 1]), torch.tensor([31, 31]), 31, 15)
    (tensor([16385, 32767]), tensor([15, 15]))
    """
    k = bits - reduced
    return ((m + 2 ** (k - 1)) >> k).clamp(max=2**reduced - 1), e - k


def scale_fixed(acc: Tensor, m: Tensor, e: Tensor, steps: tuple[str, ...] | list[str]) -> Tensor:
    """Return acc * m * 2^-e in int64 with the roundings of `specs.FixedPoint`.

    One step: R(acc * m / 2^e).  ("srdhm", R): h = (a * m + 2^30) >> 31 with a = acc << max(0, 31-e), wrapped to 32
    bits, and the doubling product rounded half away from zero by truncation, then R(h / 2^max(0, e-31)).
    ("sqdmulh", R): at least one shift is to the right, h = (a * m) >> 31 with a = acc << max(0, 32-e), then
    R(h / 2^max(1, e-31)): without overflow, R(acc * m / 2^e).
    Source: gemmlowp fixedpoint.h (SaturatingRoundingDoublingHighMul, RoundingDivideByPOT); ruy kernel_arm64.cc.

    >>> scale_fixed(torch.tensor([3]), *fixed_multiplier(torch.tensor(0.5)), ("srdhm", "half_away")).tolist()
    [2]
    """
    acc = acc.long()
    if len(steps) == 1:
        return shift_right(acc * m, e, steps[0])
    least = int(steps[0] == "sqdmulh")  # the shifts to the right that there are at least
    a = acc << (31 + least - e).clamp(min=0)
    product = (torch.remainder(a + 2**31, 2**32) - 2**31) * m
    if least:
        return shift_right(product >> 31, (e - 31).clamp(min=1), steps[1])
    nudge = torch.where(product >= 0, 2**30, 1 - 2**30)
    high = torch.div(product + nudge, 2**31, rounding_mode="trunc")
    return shift_right(high, (e - 31).clamp(min=0), steps[1])


def shift_right(value: Tensor, shift: Tensor, rounding: str) -> Tensor:
    """Return R(value / 2^shift) of int64 values, exactly; 0 <= shift <= 62.

    Raises:
        SpecError: a rounding that is not defined for shifts.

    >>> shift_right(torch.tensor([-3, 3]), torch.tensor(1), "half_up").tolist()
    [-1, 2]
    """
    floor = value >> shift
    rest = value - (floor << shift)
    if rounding == "floor":
        return floor
    if rounding == "trunc":
        return floor + ((value < 0) & (rest > 0)).long()
    half = torch.ones_like(shift) << (shift - 1).clamp(min=0)
    tie = (rest == half) & (shift > 0)
    if rounding == "half_up":
        up = tie
    elif rounding == "half_down":
        up = torch.zeros_like(tie)
    elif rounding == "half_away":
        up = tie & (value >= 0)
    elif rounding == "half_to_zero":
        up = tie & (value < 0)
    elif rounding == "half_even":
        up = tie & (floor % 2 != 0)
    elif rounding == "negative_ceil_else_half_even":
        up = tie & ((value < 0) | (floor % 2 != 0))
    else:
        wanted = "a nearest mode, floor or trunc"
        raise SpecError(where="shift_right", found=repr(rounding), wanted=wanted, do="Use another rounding in the target.")
    return floor + ((rest > half) | up).long()
