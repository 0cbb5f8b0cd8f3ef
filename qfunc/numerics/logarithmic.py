"""Logarithmic codes: a sign and a magnitude in steps of a fraction of an octave."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.specs import Log


def smallest_of(extreme: Tensor, fmt: Log) -> Tensor:
    """The scale 2^(z/k) that lets the largest magnitude code reach `extreme`: z = R(k log2 extreme) - (n-1).

    n = 2^magnitude_bits codes a sign, k steps an octave, R half-even.  z stays where float32 holds both the
    smallest magnitude as a normal number and, as far as n codes go, the largest: -126 k <= z <= 128 k - n.

    Args:
        extreme: The largest |x|, positive, float64.
    Source: HiSilicon NNIE (MQBench, user guide, hardware/nnie): z = R(16 log2 c) - 127.

    >>> smallest_of(torch.tensor(1.0, dtype=torch.float64), Log()).log2().item()
    -7.9375
    """
    codes, steps = 1 << fmt.magnitude_bits, fmt.steps_per_octave
    z = (torch.round(steps * torch.log2(extreme)) - (codes - 1)).clamp(max=128 * steps - codes).clamp(min=-126 * steps)
    return torch.exp2(z / steps)


def origin(scale: Tensor, fmt: Log) -> Tensor:
    """z, the exponent of the smallest magnitude in steps: scale = 2^(z / steps), an integer in float64."""
    return torch.round(fmt.steps_per_octave * torch.log2(scale.double()))


def encode(x: Tensor, scale: Tensor, fmt: Log) -> Tensor:
    """Sign-magnitude codes of x, with n = 2^magnitude_bits codes a sign, k steps an octave and scale 2^(z/k).

    x >= 2^(z/k - 1):       q = clamp(R(k log2 x) - z, 0, n-1)
    x <= -2^((z+1)/k - 1):  q = n + clamp(R(k log2 -x) - z, 1, n-1)
    otherwise q = n, which stands for 0; R is half-even.  Computed in float64.

    Magnitudes that float32 cannot hold, from 2^128 on, are not used.  MQBench leaves x = 2^(z/k - 1)
    unquantized, against its own user guide, which is followed here.

    Args:
        x: Real units.  NaN stays NaN; infinities become the largest magnitudes.
        scale: 2^(z/k), broadcasts against x.
    Source: HiSilicon NNIE (MQBench, user guide, hardware/nnie).

    >>> encode(torch.tensor([1.0, 0.0, -2.0]), torch.tensor(2.0**-6), Log()).tolist()
    [96.0, 128.0, 240.0]
    """
    codes, steps, z = 1 << fmt.magnitude_bits, fmt.steps_per_octave, origin(scale, fmt)
    real, top = x if x.dtype == torch.float64 else x.float(), (128 * steps - 1 - z).clamp(max=codes - 1)
    magnitudes = _by_thresholds if real.dtype == torch.float32 and not scale.ndim else _by_logarithms
    magnitude = magnitudes(real.abs(), z, top, fmt)
    code = torch.where(real < 0, magnitude.clamp(min=1).add_(codes), magnitude)
    ends = [_not_below(torch.exp2((z + k) / steps - 1), real.dtype) for k in (0, 1)]
    return torch.where((real < ends[0]).logical_and_(real > -ends[1]), float(codes), code).to(x.dtype)


def _by_logarithms(size: Tensor, z: Tensor, top: Tensor, fmt: Log) -> Tensor:
    # clamp(R(k log2 size) - z, 0, top)
    places = size.double().log2_().mul_(fmt.steps_per_octave).round_() - z
    return torch.minimum(places, top).clamp(min=0).to(size.dtype)


def _by_thresholds(size: Tensor, z: Tensor, top: Tensor, fmt: Log) -> Tensor:
    # The same of float32 for one z: a quarter below a logarithm in float32 is its code or the one before, which the
    # threshold between the two decides.  No float32 lies on a threshold 2^((q + z + 1/2) / k).
    place = torch.arange(1 << fmt.magnitude_bits, device=size.device, dtype=torch.float64)
    following = _not_below(torch.exp2((place + z + 0.5) / fmt.steps_per_octave), torch.float32)
    following = torch.where(place < top, following, torch.nan)
    below = size.log2().mul_(fmt.steps_per_octave).sub_(0.25).round_() - z.float()
    below = torch.minimum(below, top.float()).clamp(min=0)
    return below.add_(size >= _looked_up(following, below))


def _looked_up(table: Tensor, places: Tensor) -> Tensor:
    # table[places], and anything where a place is NaN.
    return table.index_select(0, places.nan_to_num(0).int().flatten()).reshape(places.shape)


def _not_below(bound: Tensor, dtype: torch.dtype) -> Tensor:
    # The least number of a dtype that is not below a bound in float64: x >= it where x >= bound.
    near = bound.to(dtype)
    return torch.where(near.double() < bound, torch.nextafter(near, torch.full_like(near, torch.inf)), near)


def decode(codes: Tensor, scale: Tensor, fmt: Log) -> Tensor:
    """The values of sign-magnitude codes: +-2^((magnitude + z) / k), and 0 for the negative magnitude 0.

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
        value = _looked_up(table, codes)
        return torch.where(codes.isnan(), codes.to(value.dtype), value)
    code = codes.double()
    negative = code >= half
    magnitude = torch.exp2((code - half * negative + z) / fmt.steps_per_octave)
    value = torch.where(code == half, 0.0, torch.where(negative, -magnitude, magnitude))
    return value.to(torch.float64 if codes.dtype == torch.float64 else torch.float32)


def log_codes(x: Tensor, scale: float, magnitude_bits: int, steps: int) -> Tensor:
    """The sign-magnitude codes of x, all arguments plain: what the graphs of emulations call.

    >>> log_codes(torch.tensor([1.0, 0.0]), 2.0**-6, 7, 16).tolist()
    [96.0, 128.0]
    """
    return encode(x, torch.tensor(scale), Log(magnitude_bits, steps))


def log_values(codes: Tensor, scale: float, magnitude_bits: int, steps: int) -> Tensor:
    """The values of sign-magnitude codes, all arguments plain.

    >>> log_values(torch.tensor([96.0, 128.0]), 2.0**-6, 7, 16).tolist()
    [1.0, 0.0]
    """
    return decode(codes, torch.tensor(scale), Log(magnitude_bits, steps))


__all__ = ["decode", "encode", "log_codes", "log_values", "origin", "smallest_of"]
