"""Add codes of different scales, with the arithmetic of each kind of kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.numerics.kernels import fixed_point
from qfunc.numerics.kernels.vector import in_runs


def add_shifted(
    a: Tensor, b: Tensor, zeros: tuple[int, int], pairs: list[tuple[int, int]], left_shift: int, steps: list[str],
    zero_point: int, low: int, high: int, sign: int = 1, lanes: int | None = None, channels_last: bool = False,
) -> Tensor:  # fmt: skip
    """Return the codes of a + sign * b in fixed point: see `specs.SumShifted`.

    `channels_last`: the runtime stores 4-d tensors with axis 1 last, which decides which entries its vectors compute.
    """
    m = [(torch.tensor(p), torch.tensor(e)) for p, e in pairs]
    terms = [
        fixed_point.scale_fixed((t - z).long() << left_shift, *q, steps) for t, z, q in zip((a, b), zeros, m, strict=False)
    ]
    for i, (t, z, (multiplier, e)) in enumerate(zip((a, b), zeros, pairs, strict=False)):
        if lanes is not None and 31 < e <= 31 + left_shift:
            exact_product = (t - z).long() << left_shift - (e - 31)
            exact_product = fixed_point.scale_fixed(exact_product, torch.tensor(multiplier), torch.tensor(31), steps)
            terms[i] = torch.where(_in_runs(a, b, lanes, channels_last), exact_product, terms[i])
    return (fixed_point.scale_fixed(terms[0] + sign * terms[1], *m[2], steps) + zero_point).clamp(low, high).float()


def _in_runs(a: Tensor, b: Tensor, lanes: int, channels_last: bool) -> Tensor:
    if channels_last and a.ndim == b.ndim == 4:
        last = [t.permute(0, 2, 3, 1).shape for t in (a, b)]
        return in_runs(last[0], last[1], lanes).permute(0, 3, 1, 2)
    return in_runs(a.shape, b.shape, lanes)


def add_scaled(
    a: Tensor, b: Tensor, zeros: tuple[int, int], m: list[int], shift: int, rounding: str, zero_point: int, low: int, high: int
) -> Tensor:
    """Return the codes of a + b, computed with two integer multipliers and one shift: see `specs.SumScaled`."""
    total = (a - zeros[0]).long() * m[0] + (b - zeros[1]).long() * m[1]
    left = total << max(-shift, 0)
    return (fixed_point.shift_right(left, torch.tensor(max(shift, 0)), rounding) + zero_point).clamp(low, high).float()


def add_by_shifts(
    a: Tensor, b: Tensor, zeros: tuple[int, int], left: list[int], shift: int, rounding: str, zero_point: int, low: int,
    high: int,
) -> Tensor:  # fmt: skip
    """Return clamp(R((a * 2^left_a + b * 2^left_b) * 2^-shift) + z): see `specs.Shift`; a negative shift shifts left."""
    terms = [(t - z).long() << s for t, z, s in zip((a, b), zeros, left, strict=True)]
    total = (terms[0] + terms[1]) << max(-shift, 0)
    return (fixed_point.shift_right(total, torch.tensor(max(shift, 0)), rounding) + zero_point).clamp(low, high).float()
