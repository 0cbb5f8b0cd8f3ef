"""Baselines: torch's fake quantization, and an exhaustive search of the range on the data."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qfunc.numerics import Affine
from qfunc.numerics.qparams import from_range, observed
from qfunc.specs import Int, PerChannel, Scheme


def kernel(scheme: Scheme, qparams: Affine) -> Callable[[Tensor], Tensor]:
    """Return torch's fake quantization of an Int scheme.  A scheme of blocks uses the per-channel kernel."""
    fmt, shared = scheme.format, scheme.scale.shared
    assert isinstance(fmt, Int)
    if not isinstance(shared, PerChannel):
        scale, zero = float(qparams.scale.flatten()[0]), int(qparams.zero_point.flatten()[0])
        return lambda x: torch.fake_quantize_per_tensor_affine(x, scale, zero, fmt.qmin, fmt.qmax)
    assert isinstance(shared.axis, int)
    axis, scales, zeros = shared.axis, qparams.scale.flatten(), qparams.zero_point.flatten().int()
    return lambda x: torch.fake_quantize_per_channel_affine(x, scales, zeros, axis, fmt.qmin, fmt.qmax)


def objective(x: Tensor, low: Tensor, high: Tensor, scheme: Scheme) -> Tensor:
    """Return the exact mean squared error of a range, for each scale."""
    error = kernel(scheme, from_range(low, high, scheme))(x).sub_(x).square_()
    return error.mean() if low.ndim == 0 else error.mean((1, 2, 3), keepdim=True)


def exhaustive(x: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """Return the best of 95 ranges, each evaluated on the data."""
    low, high = observed(x, scheme)
    best, found = torch.full_like(low, torch.inf), (low, high)
    for i in range(95):
        factor = 1 - 0.01 * i
        error = objective(x, low * factor, high * factor, scheme)
        found = torch.where(error < best, low * factor, found[0]), torch.where(error < best, high * factor, found[1])
        best = torch.minimum(error, best)
    return found
