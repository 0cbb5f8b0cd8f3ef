"""Logarithmic codes: a sign and a magnitude in steps of a fraction of an octave."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.specs import Log


def origin(scale: Tensor, fmt: Log) -> Tensor:
    """z, the exponent of the smallest magnitude in steps: scale = 2^(z / steps), an integer in float64."""
    return torch.round(fmt.steps_per_octave * torch.log2(scale.double()))


def encode(x: Tensor, scale: Tensor, fmt: Log) -> Tensor:
    """Sign-magnitude codes of x, with n = 2^magnitude_bits codes a sign, k steps an octave and scale 2^(z/k).

    x >= 2^(z/k - 1):       q = clamp(R(k log2 x) - z, 0, n-1)
    x <= -2^((z+1)/k - 1):  q = n + clamp(R(k log2 -x) - z, 1, n-1)
    otherwise q = n, which stands for 0; R is half-even.  Computed in float64.

    Source: HiSilicon NNIE (MQBench, user guide, hardware/nnie).

    >>> encode(torch.tensor([1.0, 0.0, -2.0]), torch.tensor(2.0**-6), Log()).tolist()
    [96.0, 128.0, 240.0]
    """
    codes, steps, z = 1 << fmt.magnitude_bits, fmt.steps_per_octave, origin(scale, fmt)
    real = x.double()
    magnitude = torch.round(steps * torch.log2(real.abs())) - z
    positive = real >= torch.exp2(z / steps - 1)
    negative = real <= -torch.exp2((z + 1) / steps - 1)
    above, below = magnitude.clamp(0, codes - 1), codes + magnitude.clamp(1, codes - 1)
    code = torch.where(positive, above, torch.where(negative, below, float(codes)))
    return torch.where(torch.isnan(real), real, code).to(x.dtype)


def decode(codes: Tensor, scale: Tensor, fmt: Log) -> Tensor:
    """The values of sign-magnitude codes: +-2^((magnitude + z) / k), and 0 for the negative magnitude 0."""
    half, z = 1 << fmt.magnitude_bits, origin(scale, fmt)
    code = codes.double()
    negative = code >= half
    magnitude = torch.exp2((code - half * negative + z) / fmt.steps_per_octave)
    value = torch.where(code == half, 0.0, torch.where(negative, -magnitude, magnitude))
    return value.to(torch.float64 if codes.dtype == torch.float64 else torch.float32)
