"""The float32 steps of ggml's searches: sums in order, and its rounding to integers."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.numerics._grads import reinterpreted

_MAGIC = 12582912.0  # 3 * 2^22: the lowest 23 bits of x + _MAGIC are an integer plus 2^22
_LARGEST_HALF = 65504.0


def nearest(x: Tensor) -> Tensor:
    """Round half to even to integers of 23 bits, as ggml does: larger numbers wrap around.

    >>> nearest(torch.tensor([-1.5, 2.5, 2.0**23])).tolist()
    [-2.0, 2.0, -2097152.0]
    """
    bits = reinterpreted((x + _MAGIC).contiguous(), torch.int32)
    return ((bits & 0x007FFFFF) - 0x00400000).float()


def ordered_sum(x: Tensor) -> Tensor:
    """Return the sum over the last axis in float32, one entry after the other.

    >>> ordered_sum(torch.tensor([1.0, 2.0**24, 1.0])).item()
    16777216.0
    """
    total = torch.zeros(x.shape[:-1], device=x.device)
    for i in range(x.shape[-1]):
        total = total + x[..., i]
    return total


def quotient(number: float | Tensor, x: Tensor) -> Tensor:
    """Return number / x with one rounding; PyTorch would multiply a Python number by 1 / x."""
    return torch.as_tensor(number, dtype=torch.float32, device=x.device).expand_as(x) / x


def half(x: Tensor) -> Tensor:
    """Return x rounded to float16, in float32; the largest float16 replaces larger numbers."""
    return x.clamp(-_LARGEST_HALF, _LARGEST_HALF).half().float()
