"""Resize codes bilinearly in integer arithmetic."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qfunc.numerics.kernels.fixed_point import fixed_multiplier, scale_fixed, shift_right

__all__ = ["bilinear_codes", "steps"]


def bilinear_codes(codes: Tensor, size: tuple[int, int], corners: bool, positions: str, bits: int) -> Tensor:
    """Return resized codes [N, C, H, W], with half-pixel centres or with aligned `corners`: see `specs.Bilinear`.

    >>> bilinear_codes(torch.tensor([[[[0.0, 4.0]]]]), (1, 4), False, "integer", 10).tolist()
    [[[[0.0, 1.0, 3.0, 4.0]]]]
    """
    if positions == "rational":
        return _by_ratios(codes.long(), size, corners)
    place = _integer if positions == "integer" else _float
    (top, bottom, y), (left, right, x) = (
        place(n, m, corners, bits) for n, m in zip(codes.shape[-2:], size, strict=True)
    )  # fmt: skip
    whole = 1 << bits
    total = _weighed(codes.long(), (top, bottom, y, whole), (left, right, x, whole))
    rounding = "half_away" if positions == "integer" else "half_up"
    return shift_right(total, torch.tensor(2 * bits), rounding).float()


_Places = tuple[Tensor, Tensor, Tensor, int]  # entries before, entries after, weights of the latter, sum of both weights


def _weighed(q: Tensor, rows: _Places, columns: _Places) -> Tensor:
    top, bottom, y, height = rows
    left, right, x, width = columns
    y = y[:, None]
    both = [q[..., r, :][..., left] * (width - x) + q[..., r, :][..., right] * x for r in (top, bottom)]
    return both[0] * (height - y) + both[1] * y


def _by_ratios(q: Tensor, size: tuple[int, int], corners: bool) -> Tensor:
    rows, columns = (_rational(n, m, corners) for n, m in zip(q.shape[-2:], size, strict=True))
    m, e = fixed_multiplier(torch.tensor(1.0 / (rows[3] * columns[3]), dtype=torch.float64))
    return scale_fixed(_weighed(q, rows, columns), m, e, ["half_up"]).float()


def _rational(have: int, want: int, corners: bool) -> _Places:
    n, d, offset = steps(have, want, corners)
    at = torch.arange(want) * d + offset
    before = torch.div(at, n, rounding_mode="floor")
    return before.clamp(min=0), (before + 1).clamp(max=have - 1), at - before * n, n


def steps(have: int, want: int, corners: bool) -> tuple[int, int, int]:
    """Return the smallest integers (n, d, o) such that output i of `want` is at (i d + o) / n of the input of size `have`.

    >>> steps(2, 4, False), steps(3, 5, True)
    ((4, 2, -1), (2, 1, 0))
    """
    n, d, offset = (want - 1, have - 1, 0) if corners and want > 1 else (2 * want, 2 * have, have - want)
    if corners and want > 1 and have == 1:
        n, d = want, 1
    common = math.gcd(n, d, offset)
    return n // common, d // common, offset // common


def _integer(have: int, want: int, corners: bool, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    # (entry before, entry after, weight of the latter) for each output, in fixed point.
    whole = 1 << bits
    scale = (whole * (have - 1) + (want - 1) // 2) // (want - 1) if corners and want > 1 else (whole * have + want // 2) // want
    at = torch.arange(want) * scale + (0 if corners else scale // 2 - whole // 2)
    before = torch.div(at, whole, rounding_mode="trunc").clamp(min=0)
    behind = torch.div(at + whole - 1, whole, rounding_mode="trunc").clamp(max=have - 1)
    return before, behind, at - before * whole


def _float(have: int, want: int, corners: bool, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    size = [torch.tensor(float(n - 1 if corners and want > 1 else n)) for n in (have, want)]
    at = torch.arange(want, dtype=torch.float32)
    at = at * (size[0] / size[1]) if corners else (at + 0.5) * (size[0] / size[1]) - 0.5
    at = at.clamp(0, have - 1)
    before = at.floor()
    weight = torch.round((at - before) * float(1 << bits)).long()
    return before.long(), (before.long() + 1).clamp(max=have - 1), weight


def resized(codes: Tensor, size: Any, factor: Any, corners: bool, positions: str, bits: int) -> Tensor:
    """Return codes resized bilinearly to a size or by a factor."""
    wanted = F.interpolate(codes[:1, :1], size, factor).shape[-2:]
    return bilinear_codes(codes, (wanted[0], wanted[1]), corners, positions, bits)
