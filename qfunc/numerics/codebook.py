"""Codebooks: the index of the nearest level."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.specs import Levels


def index(x: Tensor, fmt: Levels) -> Tensor:
    """The index of the level nearest to x; a tie takes the level of even index.  NaN stays NaN.

    >>> index(torch.tensor([-3.0, 0.4, 0.5]), Levels((-1.0, 0.0, 1.0))).tolist()
    [0.0, 1.0, 2.0]
    """
    levels = torch.tensor(fmt.values, dtype=x.dtype, device=x.device)
    middles = (levels[1:] + levels[:-1]) / 2
    below, through = torch.searchsorted(middles, x), torch.searchsorted(middles, x, right=True)
    even = torch.where(below % 2 == 0, below, through)
    return torch.where(torch.isnan(x), x, even.to(x.dtype))


def values(codes: Tensor, fmt: Levels) -> Tensor:
    """The levels that indices stand for."""
    levels = torch.tensor(fmt.values, dtype=codes.dtype, device=codes.device)
    nan = torch.isnan(codes)
    return torch.where(nan, codes, levels[torch.where(nan, 0, codes).long()])
