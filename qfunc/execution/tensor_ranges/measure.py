"""Ranges of tensors over all batches, with and without the few values that are far from the others."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_SAMPLE = 4096
_FAR = 16.0
"""A value is far from the others if it is so many times as large as nearly all of them."""


class Range(NamedTuple):
    """The range of all values, that of the values near the others, and the numbers of the far ones and of all."""

    low: float
    high: float
    inner_low: float
    inner_high: float
    far: int
    total: int


def range_of(x: Tensor) -> Tensor:
    """Return the fields of the `Range` of a tensor in float64.

    A value is far if |x| > 16 m, where m is a magnitude that at most one in 64 of the values exceeds, found in a sample.
    If more than one value, and more than one in 1000, is far, none counts as far.

    >>> Range(*range_of(torch.tensor([*[-1.0, 2.0] * 8, 1e9])).tolist())
    Range(low=-1.0, high=1000000000.0, inner_low=-1.0, inner_high=2.0, far=1.0, total=17.0)
    """
    flat = x.detach().flatten()
    low, high = torch.aminmax(flat)
    inner, far = (low, high), 0
    sample = flat[:: flat.numel() // _SAMPLE | 1].abs().float()
    usual = sample.topk(min(len(sample) // 64 + 2, len(sample))).values[-1]
    if bool(torch.maximum(-low, high) > _FAR * usual):
        distant = flat.abs() > _FAR * usual
        count = int(distant.sum())
        if count <= max(1, flat.numel() // 1000):
            inner, far = torch.aminmax(flat[~distant]), count
    counts = torch.tensor([far, flat.numel()], dtype=torch.float64, device=x.device)
    return torch.cat([torch.stack([low, high, *inner]).double(), counts])


def union(a: Tensor | None, b: Tensor) -> Tensor:
    """Return the fields of the range of the values of both."""
    if a is None:
        return b
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    return torch.cat([low[:1], high[1:2], low[2:3], high[3:4], a[4:] + b[4:]])
