"""Sums of products of tensors of one layout in memory, in one pass and without a copy."""

from __future__ import annotations

import torch
from torch import Tensor


def inner(a: Tensor, b: Tensor) -> Tensor:
    """sum a b, a scalar; both of one shape.

    >>> inner(torch.ones(2, 3), torch.full((2, 3), 2.0)).item()
    12.0
    """
    if a.dtype != b.dtype or a.stride() != b.stride():
        return (a * b).sum()
    return torch.dot(_in_order(a).reshape(-1), _in_order(b).reshape(-1))


def is_channels_last(x: Tensor) -> bool:
    """Whether channels, axis 1 of images, lie side by side in memory."""
    return x.ndim == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


def _in_order(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1) if is_channels_last(x) else x


__all__ = ["inner", "is_channels_last"]
