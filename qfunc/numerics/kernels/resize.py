"""Bilinear resizing of codes in integer arithmetic."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qfunc.errors import EmulationError
from qfunc.numerics.kernels.fixed_point import fixed_multiplier, scale_fixed, shift_right


def bilinear_codes(codes: Tensor, size: tuple[int, int], corners: bool, positions: str, bits: int, path: str = "") -> Tensor:
    """Return codes [N, C, H, W], resized with half-pixel centres or with aligned `corners`: see `specs.Bilinear`.

    >>> bilinear_codes(torch.tensor([[[[0.0, 4.0]]]]), (1, 4), False, "integer", 10).tolist()
    [[[[0.0, 1.0, 3.0, 4.0]]]]

    Raises:
        EmulationError: rational positions with a denominator of more than 2^bits.
    """
    if positions == "rational":
        return _resize_rational(codes.long(), size, corners, bits, path)
    place = _integer_places if positions == "integer" else _float_places
    (top, bottom, y), (left, right, x) = (
        (t.to(codes.device) for t in place(n, m, corners, bits)) for n, m in zip(codes.shape[-2:], size, strict=True)
    )
    whole = 1 << bits
    total = _interpolate(codes.long(), (top, bottom, y, whole), (left, right, x, whole))
    rounding = "half_away" if positions == "integer" else "half_up"
    return shift_right(total, torch.tensor(2 * bits), rounding).float()


_Places = tuple[Tensor, Tensor, Tensor, int]
"""The entries before and after each output, the weights of the latter, and the sum of both weights."""


def _interpolate(q: Tensor, rows: _Places, columns: _Places) -> Tensor:
    top, bottom, y, height = rows
    left, right, x, width = columns
    y = y[:, None]
    rows_between = [q[..., r, :][..., left] * (width - x) + q[..., r, :][..., right] * x for r in (top, bottom)]
    return rows_between[0] * (height - y) + rows_between[1] * y


def _resize_rational(q: Tensor, size: tuple[int, int], corners: bool, bits: int, path: str) -> Tensor:
    rows, columns = (_rational_places(n, m, corners, q.device) for n, m in zip(q.shape[-2:], size, strict=True))
    steps_between = max(rows[3], columns[3])
    if steps_between > 1 << bits:
        raise EmulationError(
            where=f"unit {path!r}", found=f"a resize of {tuple(q.shape[-2:])} to {size}, in steps of 1 / {steps_between}",
            wanted=f"at most {1 << bits} steps between two entries", do="Resize to a size with a larger common divisor.",
        )  # fmt: skip
    m, e = fixed_multiplier(torch.tensor(1.0 / (rows[3] * columns[3]), dtype=torch.float64))
    return scale_fixed(_interpolate(q, rows, columns), m, e, ["half_up"]).float()


def _rational_places(size_in: int, size_out: int, corners: bool, device: torch.device) -> _Places:
    n, d, offset = steps(size_in, size_out, corners)
    position = torch.arange(size_out, device=device) * d + offset
    before = torch.div(position, n, rounding_mode="floor")
    return before.clamp(min=0), (before + 1).clamp(max=size_in - 1), position - before * n, n


def steps(size_in: int, size_out: int, corners: bool) -> tuple[int, int, int]:
    """Return the smallest integers (n, d, o) such that output i is at (i d + o) / n of the input.

    >>> steps(2, 4, False), steps(3, 5, True)
    ((4, 2, -1), (2, 1, 0))
    """
    n, d, offset = (
        (size_out - 1, size_in - 1, 0) if corners and size_out > 1 else (2 * size_out, 2 * size_in, size_in - size_out)
    )
    if corners and size_out > 1 and size_in == 1:
        n, d = size_out, 1
    common = math.gcd(n, d, offset)
    return n // common, d // common, offset // common


def _integer_places(size_in: int, size_out: int, corners: bool, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    # (entry before, entry after, weight of the latter) for each output, in fixed point.
    whole = 1 << bits
    scale = (
        (whole * (size_in - 1) + (size_out - 1) // 2) // (size_out - 1)
        if corners and size_out > 1
        else (whole * size_in + size_out // 2) // size_out
    )
    position = torch.arange(size_out) * scale + (0 if corners else scale // 2 - whole // 2)
    before = torch.div(position, whole, rounding_mode="trunc").clamp(0, size_in - 1)
    after = torch.div(position + whole - 1, whole, rounding_mode="trunc").clamp(max=size_in - 1)
    return before, after, position - before * whole


def _float_places(size_in: int, size_out: int, corners: bool, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    size = [torch.tensor(float(n - 1 if corners and size_out > 1 else n)) for n in (size_in, size_out)]
    position = torch.arange(size_out, dtype=torch.float32)
    position = position * (size[0] / size[1]) if corners else (position + 0.5) * (size[0] / size[1]) - 0.5
    position = position.clamp(0, size_in - 1)
    before = position.floor()
    weight = torch.round((position - before) * float(1 << bits)).long()
    return before.long(), (before.long() + 1).clamp(max=size_in - 1), weight


def resize_codes(codes: Tensor, size: Any, factor: Any, corners: bool, positions: str, bits: int, path: str) -> Tensor:
    """Return codes resized bilinearly to a size or by a factor.

    Raises:
        EmulationError: rational positions with a denominator of more than 2^bits.
    """
    out_size = F.interpolate(codes[:1, :1], size, factor).shape[-2:]
    return bilinear_codes(codes, (out_size[0], out_size[1]), corners, positions, bits, path)
