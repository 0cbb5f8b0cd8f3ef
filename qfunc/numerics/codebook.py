"""Quantize to the levels of a codebook: the index of the nearest level, and its value."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qfunc.specs import Levels


def index(x: Tensor, fmt: Levels) -> Tensor:
    """Return the index of the level nearest to x, i = argmin |x - v_i|; ties go to the even index.

    Args:
        x: In units of the scale, any shape; levels are rounded to the dtype of x, then compared exactly.
    Returns:
        Indices in the dtype of x; NaN stays NaN, infinities give the outermost levels.
    Source: QLoRA, arXiv:2305.14314, section 3 (nearest of quantile levels); the tie rule is this library's.

    >>> index(torch.tensor([-3.0, 0.4, 0.5]), Levels((-1.0, 0.0, 1.0))).tolist()
    [0.0, 1.0, 2.0]
    """
    above = torch.searchsorted(_thresholds(fmt, x), x, right=True)
    return torch.where(torch.isnan(x), x, above.to(x.dtype))


def values(codes: Tensor, fmt: Levels) -> Tensor:
    """Return the levels v_i of indices i.

    Args:
        codes: 0 to n - 1, in floating point; NaN stays NaN.

    >>> values(torch.tensor([0.0, 2.0]), Levels((-1.0, 0.0, 1.0))).tolist()
    [-1.0, 1.0]
    """
    levels = torch.tensor(fmt.values, dtype=codes.dtype, device=codes.device)
    nan = torch.isnan(codes)
    return torch.where(nan, codes, levels[torch.where(nan, 0, codes).long()])


def _thresholds(fmt: Levels, like: Tensor) -> Tensor:
    # For each level but the first, the smallest x in the dtype of `like` that rounds to it.  The midpoint m of
    # two levels is the float64 half sum plus its exact rounding error (Knuth's two-sum).
    levels = torch.tensor(fmt.values, dtype=like.dtype, device=like.device).double() / 2
    low, high = levels[:-1], levels[1:]
    middle = low + high
    high_part = middle - low
    error = (low - (middle - high_part)) + (high - high_part)
    threshold = middle.to(like.dtype)
    excess = (threshold.double() - middle) - error  # threshold - m, its sign exact
    even = torch.arange(len(fmt.values) - 1, device=like.device) % 2 == 0  # ties go to the level below
    return torch.where(
        (excess < 0) | ((excess == 0) & even), torch.nextafter(threshold, torch.full_like(threshold, math.inf)), threshold
    )
