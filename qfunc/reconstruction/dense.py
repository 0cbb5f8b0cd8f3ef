"""Tensors by their order in memory: as vectors without a copy, and sums of their products in one pass."""

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
    return torch.dot(as_line(a), as_line(b))


def is_channels_last(x: Tensor) -> bool:
    """Whether channels, axis 1 of images, lie side by side in memory."""
    return x.ndim == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


def as_line(x: Tensor, like: Tensor | None = None) -> Tensor:
    """The elements in the order in which those of `like`, by default x, lie in memory: [n].

    >>> x = torch.arange(8.0).view(1, 2, 2, 2)
    >>> as_line(x, x.contiguous(memory_format=torch.channels_last)).tolist()
    [0.0, 4.0, 1.0, 5.0, 2.0, 6.0, 3.0, 7.0]
    """
    return (x.permute(0, 2, 3, 1) if is_channels_last(x if like is None else like) else x).reshape(-1)


def off_line(line: Tensor, like: Tensor) -> Tensor:
    """A view of such a line, in the shape and the order of `like`.

    >>> off_line(as_line(torch.eye(2)), torch.empty(2, 2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if not is_channels_last(like):
        return line.view(like.shape)
    n, c, h, w = like.shape
    return line.view(n, h, w, c).permute(0, 3, 1, 2)


__all__ = ["as_line", "inner", "is_channels_last", "off_line"]
