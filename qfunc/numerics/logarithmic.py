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
    real, top = x.double(), (128 * steps - 1 - z).clamp(max=codes - 1)
    magnitude = torch.minimum(torch.round(steps * torch.log2(real.abs())) - z, top)
    above, below = magnitude.clamp(min=0), codes + magnitude.clamp(min=1)
    positive = real >= torch.exp2(z / steps - 1)
    negative = real <= -torch.exp2((z + 1) / steps - 1)
    code = torch.where(positive, above, torch.where(negative, below, float(codes)))
    return torch.where(torch.isnan(real), real, code).to(x.dtype)


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
