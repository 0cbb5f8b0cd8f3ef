"""Codes and real values by vector kernels: whole runs of lanes one way, the entries left over another."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.numerics.integer import quantize_codes
from qfunc.numerics.rounding import round_by


def dequantize_sum(codes: Tensor, scale: float, zero_point: int, lanes: int) -> Tensor:
    """Real values of codes in float32 by q*s + (-z*s), (q - z)*s for the last n mod `lanes`: see `specs.DequantizeSum`.

    >>> dequantize_sum(torch.tensor([4.0]), 0.25, 3, 16).tolist()
    [0.25]
    """
    s, flat = torch.tensor(scale), codes.contiguous().reshape(-1)
    runs = torch.arange(flat.numel()) < flat.numel() // lanes * lanes
    return torch.where(runs, flat * s + s * -float(zero_point), (flat - zero_point) * s).reshape(codes.shape)


def quantize_lanes(
    x: Tensor, scale: float, zero_point: int, low: int, high: int, rounding: str, division: bool, rest: str, lanes: int
) -> Tensor:
    """Codes as of `quantize_codes`, those of the last n mod `lanes` from x / s in float64: see `specs.QuantizeLanes`.

    >>> quantize_lanes(torch.tensor([0.5, 0.5, 0.5]), 1.0, 3, 0, 255, "half_even", False, "half_away", 2).tolist()
    [3.0, 3.0, 4.0]
    """
    flat = x.contiguous().reshape(-1)
    whole = flat.numel() // lanes * lanes
    runs = quantize_codes(flat[:whole], scale, zero_point, low, high, rounding, division)
    last = (round_by(flat[whole:].double() / scale, rest, low - zero_point) + zero_point).clamp(low, high)
    return torch.cat([runs, last.float()]).reshape(x.shape)


__all__ = ["dequantize_sum", "quantize_lanes"]
