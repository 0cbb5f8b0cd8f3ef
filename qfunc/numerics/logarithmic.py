"""Logarithmic codes: a sign, and a magnitude in steps of 1/k octave."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.specs import Log


def scale_from_max(extreme: Tensor, fmt: Log) -> Tensor:
    """Return the scale 2^(z/k) whose largest magnitude code represents `extreme`: z = R(k log2 extreme) - (n-1).

    n = 2^magnitude_bits codes per sign, k steps per octave, R half-even.  z is limited to -126 k <= z <= 128 k - n,
    so that the smallest magnitude is a normal float32 and the largest is finite.

    Args:
        extreme: The largest |x|, positive, float64.
    Source: HiSilicon NNIE (MQBench, user guide, hardware/nnie): z = R(16 log2 c) - 127.

    >>> scale_from_max(torch.tensor(1.0, dtype=torch.float64), Log()).log2().item()
    -7.9375
    """
    codes, steps = 1 << fmt.magnitude_bits, fmt.steps_per_octave
    z = (torch.round(steps * torch.log2(extreme)) - (codes - 1)).clamp(max=128 * steps - codes).clamp(min=-126 * steps)
    return torch.exp2(z / steps)


def origin(scale: Tensor, fmt: Log) -> Tensor:
    """Return z, the exponent of the smallest magnitude in steps: scale = 2^(z / steps), an integer in float64."""
    return torch.round(fmt.steps_per_octave * torch.log2(scale.double()))


def encode(x: Tensor, scale: Tensor, fmt: Log) -> Tensor:
    """Return sign-magnitude codes of x, with n = 2^magnitude_bits codes per sign, k steps per octave, scale 2^(z/k).

    x >= 2^(z/k - 1):       q = clamp(R(k log2 x) - z, 0, n-1)
    x <= -2^((z+1)/k - 1):  q = n + clamp(R(k log2 -x) - z, 1, n-1)
    otherwise q = n, the code of 0; R is half-even.  Computed in float64.

    Magnitudes that overflow float32, 2^128 and more, are not used.  MQBench leaves x = 2^(z/k - 1)
    unquantized, contrary to its user guide; this function follows the guide.

    Args:
        x: Real units.  NaN stays NaN; infinities become the largest magnitudes.
        scale: 2^(z/k), broadcasts against x.
    Source: HiSilicon NNIE (MQBench, user guide, hardware/nnie).

    >>> encode(torch.tensor([1.0, 0.0, -2.0]), torch.tensor(2.0**-6), Log()).tolist()
    [96.0, 128.0, 240.0]
    """
    codes, steps, z = 1 << fmt.magnitude_bits, fmt.steps_per_octave, origin(scale, fmt)
    real, top = x if x.dtype == torch.float64 else x.float(), (128 * steps - 1 - z).clamp(max=codes - 1)
    magnitudes = _magnitudes_by_threshold if real.dtype == torch.float32 and not scale.ndim else _magnitudes_by_logarithm
    magnitude = magnitudes(real.abs(), z, top, fmt)
    code = torch.where(real < 0, magnitude.clamp(min=1).add_(codes), magnitude)
    ends = [_round_up(torch.exp2((z + k) / steps - 1), real.dtype) for k in (0, 1)]
    return torch.where((real < ends[0]).logical_and_(real > -ends[1]), float(codes), code).to(x.dtype)


def _magnitudes_by_logarithm(magnitude: Tensor, z: Tensor, top: Tensor, fmt: Log) -> Tensor:
    # clamp(R(k log2 magnitude) - z, 0, top)
    indices = magnitude.double().log2_().mul_(fmt.steps_per_octave).round_() - z
    return torch.minimum(indices, top).clamp(min=0).to(magnitude.dtype)


def _magnitudes_by_threshold(magnitude: Tensor, z: Tensor, top: Tensor, fmt: Log) -> Tensor:
    # The same for float32 and a scalar z.  Rounding the float32 logarithm less 1/4 gives the code or the one before it;
    # the threshold between the two decides.  No float32 equals a threshold 2^((q + z + 1/2) / k).
    index = torch.arange(1 << fmt.magnitude_bits, device=magnitude.device, dtype=torch.float64)
    next_threshold = _round_up(torch.exp2((index + z + 0.5) / fmt.steps_per_octave), torch.float32)
    next_threshold = torch.where(index < top, next_threshold, torch.nan)
    lower = magnitude.log2().mul_(fmt.steps_per_octave).sub_(0.25).round_() - z.float()
    lower = torch.minimum(lower, top.float()).clamp(min=0)
    return lower.add_(magnitude >= _lookup(next_threshold, lower))


def _lookup(table: Tensor, indices: Tensor) -> Tensor:
    # table[indices]; arbitrary where an index is NaN.
    return table.index_select(0, indices.nan_to_num(0).int().flatten()).reshape(indices.shape)


def _round_up(bound: Tensor, dtype: torch.dtype) -> Tensor:
    # The smallest number of `dtype` that is at least the float64 bound, so that comparing with either is the same.
    near = bound.to(dtype)
    return torch.where(near.double() < bound, torch.nextafter(near, torch.full_like(near, torch.inf)), near)


def decode(codes: Tensor, scale: Tensor, fmt: Log) -> Tensor:
    """Return the values of sign-magnitude codes: +-2^((magnitude + z) / k), and 0 for the negative magnitude 0.

    Args:
        codes: 0 to 2n - 1, in floating point; NaN stays NaN.
        scale: 2^(z/k), broadcasts against the codes.
    Returns:
        float64 for float64 codes, else float32.

    >>> decode(torch.tensor([96.0, 128.0, 240.0]), torch.tensor(2.0**-6), Log()).tolist()
    [1.0, 0.0, -2.0]
    """
    half, z = 1 << fmt.magnitude_bits, origin(scale, fmt)
    if codes.numel() > 4 * half and not scale.ndim:
        table = decode(torch.arange(2 * half, device=codes.device, dtype=codes.dtype), scale, fmt)
        value = _lookup(table, codes)
        return torch.where(codes.isnan(), codes.to(value.dtype), value)
    code = codes.double()
    negative = code >= half
    magnitude = torch.exp2((code - half * negative + z) / fmt.steps_per_octave)
    value = torch.where(code == half, 0.0, torch.where(negative, -magnitude, magnitude))
    return value.to(torch.float64 if codes.dtype == torch.float64 else torch.float32)


def log_codes(x: Tensor, scale: float, magnitude_bits: int, steps: int) -> Tensor:
    """Return the sign-magnitude codes of x; `encode` with plain arguments, for the graphs of emulations.

    >>> log_codes(torch.tensor([1.0, 0.0]), 2.0**-6, 7, 16).tolist()
    [96.0, 128.0]
    """
    return encode(x, torch.tensor(scale), Log(magnitude_bits, steps))


def log_values(codes: Tensor, scale: float, magnitude_bits: int, steps: int) -> Tensor:
    """Return the values of sign-magnitude codes; `decode` with plain arguments, for the graphs of emulations.

    >>> log_values(torch.tensor([96.0, 128.0]), 2.0**-6, 7, 16).tolist()
    [1.0, 0.0]
    """
    return decode(codes, torch.tensor(scale), Log(magnitude_bits, steps))
