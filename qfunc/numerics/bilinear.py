"""Bilinear resizing of codes by integer weights."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.numerics.fixed_point import shift_right


def bilinear_codes(codes: Tensor, size: tuple[int, int], corners: bool, positions: str, bits: int) -> Tensor:
    """Codes [N, C, H, W] resized, by half-pixel centres or with `corners` aligned: see `specs.Bilinear`.

    >>> bilinear_codes(torch.tensor([[[[0.0, 4.0]]]]), (1, 4), False, "integer", 10).tolist()
    [[[[0.0, 1.0, 3.0, 4.0]]]]
    """
    place = _integer if positions == "integer" else _float
    (top, bottom, y), (left, right, x) = (
        place(n, m, corners, bits) for n, m in zip(codes.shape[-2:], size, strict=True)
    )  # fmt: skip
    whole, y, q = 1 << bits, y[:, None], codes.long()
    rows = [q[..., r, :][..., left] * (whole - x) + q[..., r, :][..., right] * x for r in (top, bottom)]
    total = rows[0] * (whole - y) + rows[1] * y
    rounding = "half_away" if positions == "integer" else "half_up"
    return shift_right(total, torch.tensor(2 * bits), rounding).float()


def _integer(have: int, want: int, corners: bool, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    # (entry before, entry behind, weight of the one behind) for each place, in fixed point.
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


__all__ = ["bilinear_codes"]
