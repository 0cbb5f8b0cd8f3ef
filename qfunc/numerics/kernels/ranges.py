"""Quantization by the two ends of a range in place of a scale, as OpenVINO computes it in float32.

Of a tensor with codes qmin to qmax, n = qmax - qmin, the ends are l = s (qmin - z) and h = s (qmax - z).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qfunc.numerics.kernels import integer
from qfunc.numerics.kernels.requantize import clamp_to_bounds

SMALLEST_BIAS = 1e-30
"""The bias in the file of a product that has none, or zeros: without it, OpenVINO computes some products wrongly."""


def range_ends(scale: float | Tensor, zero_point: int | Tensor, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Return (l, h) in float32, of the codes `low` to `high`; h is rounded from float64, and l from h - s n.

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
    clipped: bool,
    bounds: Sequence[tuple[float | None, float | None]] = (),
    other: Tensor | None = None,
) -> Tensor:
    """Return the codes of clamp(acc*m + bias) + other real values: see `FloatRequantize(by_range=True)` of `specs`.

    Args:
        ends: The lowest and the highest code.
        clamp: The codes that activations leave.
        clipped: Some activation has an upper bound.
    """
    least, most = range_ends(scale, zero_point, *ends)
    value = clamp_to_bounds(acc.float() * m + bias, bounds)
    value = value if other is None else value + other
    r, c = _levels(least, most, ends[1] - ends[0])
    index = integer.fma(value, r, c) if c else value * (r if clipped else 1 / (1 / r))
    return (torch.round(index) + ends[0]).clamp(*clamp)


def add_by_range(
    acc: Tensor,
    m: Tensor,
    bias: Tensor,
    bounds: Sequence[tuple[float | None, float | None]],
    other: tuple[Tensor, float, int, int, int],
    scale: float,
    zero_point: int,
    ends: tuple[int, int],
    clamp: tuple[int, int],
) -> Tensor:
    """Return the codes of clamp(acc*m + bias) + other codes: see `FloatRequantize(by_range=True)` of `specs`.

    The sum is computed in steps t of `other`, from its lowest code: (v - c t) (1/t) + q - qmin, and the ends are divided by t.

    Args:
        other: The codes, their scale, zero point, and lowest and highest code.
    """
    codes, scale_of_other, zero_of_other, lowest, highest = other
    qparams = scale_of_other, zero_of_other, lowest, highest
    step, (_, shift) = range_step(*qparams), _levels(*range_ends(*qparams), highest - lowest)
    value = (clamp_to_bounds(acc.float() * m + bias, bounds) - shift * step) * step.reciprocal() + (codes.float() - lowest)
    least, most = (end / step for end in range_ends(scale, zero_point, *ends))
    index = integer.fma(value, *_levels(least, most, ends[1] - ends[0]))
    return (torch.round(index) + ends[0]).clamp(*clamp)


def _levels(least: Tensor, most: Tensor, n: int) -> tuple[Tensor, Tensor]:
    # (r, c): the index of the level of x is x r + c.  A number over a tensor would be the reciprocal times the number.
    width, levels = most - least, torch.tensor(float(n))
    return levels / width, -least * levels / width


__all__ = [
    "SMALLEST_BIAS",
    "add_by_range",
    "quantize_by_range",
    "range_ends",
    "range_step",
    "requantize_by_range",
    "weight_codes",
]
