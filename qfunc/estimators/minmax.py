"""MinMax: the smallest and the largest value over all batches."""

from __future__ import annotations

from typing import NamedTuple

import torch
from attrs import frozen
from torch import Tensor

from qfunc.numerics.qparams import Affine, from_range, observed, qparams_shape
from qfunc.specs import Scheme


class Range(NamedTuple):
    """low and high in real units, in the shape of the qparams; +inf and -inf before any data."""

    low: Tensor
    high: Tensor


@frozen
class MinMax:
    """low = min(x), high = max(x) over all batches; qparams by `numerics.from_range`.

    NaN and infinities in x propagate to the state.

    Raises:
        CalibrationError: by `calibrate`, if a value is NaN or infinite.
    Source: Jacob et al., arXiv:1712.05877, section 3 (weights); ONNX Runtime quantization tool, MinMax.

    >>> state = MinMax().update(MinMax().init(Scheme(), torch.empty(2)), torch.tensor([-1.0, 2.54]), Scheme())
    >>> MinMax().finalize(state, Scheme()).scale.item()
    0.019999999552965164
    """

    def init(self, scheme: Scheme, like: Tensor) -> Range:
        """Return the empty range: the identity of merge."""
        return nothing_seen(scheme, like)

    def update(self, state: Range, x: Tensor, scheme: Scheme) -> Range:
        """Return the range widened by x; an empty x changes nothing."""
        if x.numel() == 0:
            return state
        low, high = observed(x, scheme)
        return Range(torch.minimum(state.low, low), torch.maximum(state.high, high))

    def merge(self, a: Range, b: Range) -> Range:
        """Return the range of both."""
        return Range(torch.minimum(a.low, b.low), torch.maximum(a.high, b.high))

    def range(self, state: Range, scheme: Scheme) -> Range:
        """Return the range itself, which `Ema` averages."""
        return state

    def finalize(self, state: Range, scheme: Scheme) -> Affine:
        """Return the qparams of the range."""
        return from_range(state.low, state.high, scheme)


def nothing_seen(scheme: Scheme, like: Tensor) -> Range:
    """Return [+inf, -inf], the range of no values, in float32 on the device of `like`; its values are not read.

    >>> nothing_seen(Scheme(), torch.empty(3))
    Range(low=tensor(inf), high=tensor(-inf))
    """
    low = torch.full(qparams_shape(scheme, tuple(like.shape)), torch.inf, dtype=torch.float32, device=like.device)
    return Range(low, -low)
