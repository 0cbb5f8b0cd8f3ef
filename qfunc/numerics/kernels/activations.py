"""Activations and averages of codes in fixed-point arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from qfunc.errors import EmulationError
from qfunc.numerics.kernels import integer
from qfunc.numerics.kernels.fixed_point import fixed_multiplier, scale_fixed, shift_right
from qfunc.numerics.kernels.vector import in_vectors
from qfunc.numerics.rounding import round_by

GATE_BITS = 23
"""The fractional bits of the gate of a gated linear unit."""


def two_slopes(
    x: Tensor, below: Tensor, m: Sequence[Tensor], e: Sequence[Tensor], steps: list[str], zero_point: int, low: int, high: int
) -> Tensor:
    """Return the codes of max(x, 0) * m_0 2^-e_0 + min(`below`, 0 where x < 0) * m_1 2^-e_1: see `specs.FixedPoint`.

    Args:
        x: Codes minus their zero point; below: x, or x times the slope's own codes.

    >>> m, e = zip(*(fixed_multiplier(torch.tensor(v)) for v in (0.5, 0.25)))
    >>> x = torch.tensor([-8.0, 8.0])
    >>> two_slopes(x, x, m, e, ["srdhm", "half_away"], 0, -128, 127).tolist()
    [-2.0, 4.0]
    """
    above = scale_fixed(x, m[0], e[0], steps)
    return (torch.where(x >= 0, above, scale_fixed(below, m[1], e[1], steps)) + zero_point).clamp(low, high).float()


def fixed_bits(x: Tensor, m: Sequence[int], bits: int, rounding: str, zero_point: int, low: int, high: int) -> Tensor:
    """Return the codes of R(x * m * 2^-bits) + z with m[0] above and m[1] below 0: see `specs.FixedBits`.

    >>> fixed_bits(torch.tensor([-8.0, 8.0]), (128, 64), 8, "half_up", 0, -128, 127).tolist()
    [-2.0, 4.0]
    """
    product = x.long() * torch.where(x >= 0, m[0], m[1])
    return (shift_right(product, torch.tensor(bits), rounding) + zero_point).clamp(low, high).float()


def mean_fixed(
    codes: Tensor, zero_in: int, dims: Sequence[int], keepdim: bool, ratio: float, steps: list[str], zero_point: int, low: int,
    high: int,
) -> Tensor:  # fmt: skip
    """Return the codes of a mean: steps(sum(q - z_x) * m' * 2^-e') + z, the multiplier of s_x / s_y divided by the count.

    Without axes it is the mean of all.  m' = floor(m 2^k / n), e' = e + k with k = min(floor(log2 n), 32, 62 - e).
    Source: TFLite, reference_ops QuantizedMeanOrSum.

    >>> mean_fixed(torch.tensor([[5.0, 8.0]]), 1, [1], False, 1.0, ["srdhm", "half_away"], 0, -128, 127).tolist()
    [6.0]
    """
    count = math.prod(codes.shape[d] for d in dims or range(codes.ndim))
    m, e = (int(v) for v in fixed_multiplier(torch.tensor(ratio, dtype=torch.float64)))
    k = max(0, min(count.bit_length() - 1, 32, 62 - e))
    multiplier = torch.tensor((m << k) // count), torch.tensor(e + k)
    total = (codes - zero_in).double().sum(list(dims), keepdim=keepdim)
    return (scale_fixed(total, *multiplier, steps) + zero_point).clamp(low, high).float()


def require_images(codes: Tensor, kernel: Sequence[int]) -> None:
    """Raise unless a pool has a batch of images; torch also takes one image without the batch.

    Raises:
        EmulationError: another rank.
    """
    if codes.ndim != len(kernel) + 2:
        raise EmulationError(
            where=f"emulate, a pool by {tuple(kernel)}", found=f"a tensor of rank {codes.ndim}",
            wanted=f"a batch of images, of rank {len(kernel) + 2}", do="Use x.unsqueeze(1) before it.",
        )  # fmt: skip


def average_inside(
    codes: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil_mode: bool, pads: bool, fill: int,
    rounding: str, low: int, high: int, centred: bool = False,
) -> Tensor:  # fmt: skip
    """Return the codes of the mean over each window of the codes themselves: see `specs.AverageCodes`.

    Args:
        pads: True to include the padding, with code `fill`, in the mean; False to average over the image only.
        centred: True to average codes minus `fill`, their zero point, and to add it again after the rounding.

    >>> x = torch.tensor([[[[-3.0, -2.0]]]])
    >>> average_inside(x, (1, 2), (1, 2), (0, 0), False, True, 0, "half_away", -128, 127).tolist()
    [[[[-3.0]]]]

    Raises:
        EmulationError: the codes are no batch of images.
    """
    require_images(codes, kernel)
    if codes.ndim == 3:
        kernel, stride, padding, rows = (1, *kernel), (1, *stride), (0, *padding), codes.unsqueeze(-2)
        return average_inside(rows, kernel, stride, padding, ceil_mode, pads, fill, rounding, low, high, centred).squeeze(-2)
    image = torch.ones_like(codes[:1, :1]).double()
    pool = torch.nn.functional.avg_pool2d

    def window_sum(x: Tensor, divisor: int | None = 1) -> Tensor:
        return pool(x, kernel, stride, padding, ceil_mode, True, divisor)  # type: ignore[arg-type]

    inside = window_sum(image).round()
    count = (inside / window_sum(image, None)).round() if pads else inside  # torch counts no padding that ceil_mode adds
    offset = fill if centred else 0
    total = window_sum(codes.double() - offset) + (count - inside) * (fill - offset)
    return (round_by(total / count, rounding) + offset).clamp(low, high).float()


def hard_swish16(
    codes: Tensor, zero_in: int, scale_in: float, scale: float, zero_point: int, low: int, high: int, lanes: int | None = None,
    channels_last: bool = False,
) -> Tensor:  # fmt: skip
    """Return the codes of hardswish in 16 bits: see `specs.HardSwish16`.

    `channels_last`: as that of `addition.add_shifted`.

    >>> hard_swish16(torch.tensor([-8.0, 0.0, 8.0]), 0, 0.5, 0.5, 0, -128, 127).tolist()
    [0.0, 0.0, 8.0]
    """
    fine, *others = torch.tensor([scale_in / 128, scale, 3 / 2**15], dtype=torch.float32)
    (m_y, e_y), (m_6, e_6) = (_multiplier16(float(fine / s)) for s in others)
    x = (codes - zero_in).long() << 7
    height = _high16(x, m_y)

    def value(rounding: str) -> Tensor:
        share = _saturate16(x << (e_6 - 1)) if e_6 > 0 else x
        share = _high16(share, m_6)
        share = _saturate16(share << 1) if e_6 > 0 else shift_right(share, torch.tensor(-e_6), rounding)
        share = (share + 2**15) >> 1
        cut = shift_right(share * height, torch.tensor(15), "floor" if rounding == "half_up" else "trunc")
        return shift_right(cut << max(e_y, 0), torch.tensor(max(-e_y, 0)), rounding)

    found = value("half_away")
    if lanes is not None:
        found = torch.where(in_vectors(codes, codes, lanes, channels_last), value("half_up"), found)
    return (found + zero_point).clamp(low, high).float()


def _multiplier16(real: float) -> tuple[int, int]:
    # (m of 15 bits, e) with real ~ m 2^(e - 15): the multiplier of 31 bits, rounded half up and saturated.
    m, e = (int(v) for v in fixed_multiplier(torch.tensor(real, dtype=torch.float64)))
    return min((m + 2**15) >> 16, 2**15 - 1), 31 - e


def _saturate16(x: Tensor) -> Tensor:
    return x.clamp(-(2**15), 2**15 - 1)


def _high16(x: Tensor, m: int) -> Tensor:
    # The saturating rounding doubling high multiply of 16 bits; halves are rounded up, those of negative products too.
    return _saturate16(shift_right(x * m, torch.tensor(15), "half_up"))


def prelu_codes(
    x: Tensor, below: Tensor, multipliers: list[float], zero_point: int, low: int, high: int, rounding: str
) -> Tensor:
    """Return the codes of a prelu in float32: requantize(x, M), and requantize(x * slope, M of the slope) where x < 0."""
    above, negative = (
        integer.requantize(v, torch.tensor(m), zero_point, low, high, rounding, "after")
        for v, m in zip((x, below), multipliers, strict=True)
    )
    return torch.where(x >= 0, above, negative)


def scale_channels(x: Tensor, slope: Tensor) -> Tensor:
    """Return x times `slope`, which has one number or one per channel (axis 1)."""
    return x * (slope.reshape(-1, *[1] * (x.ndim - 2)) if x.ndim > 1 else slope)


def gate_table(scale: float, zero_point: int) -> Tensor:
    """Return round(2^23 sigmoid(s (q - z))) for the codes -128 ... 127, as int64.

    >>> gate_table(1.0, 0)[128].item() / 2**23
    0.5
    """
    codes = torch.arange(-128, 128, dtype=torch.float64)
    return torch.round(torch.sigmoid((codes - zero_point) * scale) * 2.0**GATE_BITS).long()


def glu_codes(codes: Tensor, dim: int, scale: float, zero_in: int, scale_out: float, zero: int, low: int, high: int) -> Tensor:
    """Return the codes of a * sigmoid(b), a and b the halves along `dim`: see `specs.GluTable`.

    >>> glu_codes(torch.tensor([8.0, 0.0]), -1, 0.5, 0, 0.25, 0, -128, 127).tolist()
    [8.0]
    """
    value, gate = codes.long().chunk(2, dim)
    m, e = fixed_multiplier(torch.tensor(scale / scale_out * 2.0**-GATE_BITS, dtype=torch.float64))
    product = (value - zero_in) * gate_table(scale, zero_in).to(codes.device)[gate + 128]
    return (scale_fixed(product, m, e, ["half_up"]) + zero).clamp(low, high).float()


def hard_swish_by_sixths(x: Tensor) -> Tensor:
    """Return x * clamp(x * (1/6) + 1/2, 0, 1) in float32.

    Source: XNNPACK, reference/unary-elementwise.cc; measured on executorch 1.5.1.

    >>> hard_swish_by_sixths(torch.tensor([-4.0, 1.5, 4.0])).tolist()
    [-0.0, 1.125, 4.0]
    """
    return x * (x * (1 / torch.tensor(6.0)) + 0.5).clamp(0, 1)
