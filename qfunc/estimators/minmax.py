"""The smallest and largest value seen."""

from __future__ import annotations

from typing import NamedTuple

import torch
from attrs import frozen
from torch import Tensor

from qfunc.numerics.qparams import Affine, blocks, from_range, qparams_shape
from qfunc.specs import Scheme


class Range(NamedTuple):
    """low and high in real units, of the shape of the qparams; +inf and -inf before any data."""

    low: Tensor
    high: Tensor


@frozen
class MinMax:
    """low = min(x), high = max(x) over all batches; qparams by `numerics.from_range`.

    Raises:
        CalibrationError: by `calibrate`, if a value is NaN or infinite.

    >>> state = MinMax().update(MinMax().init(Scheme(), torch.empty(2)), torch.tensor([-1.0, 2.54]), Scheme())
    >>> MinMax().finalize(state, Scheme()).scale.item()
    0.019999999552965164
    """

    def init(self, scheme: Scheme, like: Tensor) -> Range:
        """The empty range: the identity of merge."""
        shape = qparams_shape(scheme, tuple(like.shape))
        full = torch.full(shape, torch.inf, dtype=torch.float32, device=like.device)
        return Range(full, -full)

    def update(self, state: Range, x: Tensor, scheme: Scheme) -> Range:
        """The range widened by x; an empty x changes nothing."""
        if x.numel() == 0:
            return state
        seen = observe(x, scheme)
        return Range(torch.minimum(state.low, seen.low), torch.maximum(state.high, seen.high))

    def merge(self, a: Range, b: Range) -> Range:
        """The range of both."""
        return Range(torch.minimum(a.low, b.low), torch.maximum(a.high, b.high))

    def finalize(self, state: Range, scheme: Scheme) -> Affine:
        """The qparams of the range."""
        return from_range(state.low, state.high, scheme)


def observe(x: Tensor, scheme: Scheme) -> Range:
    """The range of one tensor in float32, in one pass over it."""
    split, axes = blocks(x.detach(), scheme)
    if len(axes) == split.ndim:
        low, high = torch.aminmax(split)
    else:
        low, high = split.amin(axes), split.amax(axes)
    return Range(low.float(), high.float())
