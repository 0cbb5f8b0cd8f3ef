"""StdClip: the range of k standard deviations around the mean."""

from __future__ import annotations

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.estimators.minmax import Range
from qfunc.estimators.moments import Moments, mean_and_std, merged, moments, no_moments
from qfunc.numerics.qparams import Affine, from_range
from qfunc.specs import Scheme


def _k(instance: object, attribute: object, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise SpecError(where="StdClip.k", found=repr(value), wanted="a finite number above 0", do="Give such a number.")


@frozen
class StdClip:
    """low = max(min(x), mean - k*std), high = min(max(x), mean + k*std), over all values of all batches.

    std is the sample standard deviation, sqrt(sum (x - mean)^2 / (n - 1)), and 0 for a single value.
    MQBench's ClipStdObserver swaps min and max, so it only widens the range; and it uses only the last batch.

    Args:
        k: The number of standard deviations, above 0.
    Raises:
        SpecError: k is not above 0.
    Source: MQBench, ClipStdObserver (k = 2.6).

    >>> x, clip = torch.tensor([0.0] * 99 + [100.0]), StdClip(k=3)
    >>> clip.range(clip.update(clip.init(Scheme(), x), x, Scheme()), Scheme()).high.item()
    31.0
    """

    k: float = field(default=2.6, validator=_k)

    def init(self, scheme: Scheme, like: Tensor) -> Moments:
        """Return the state before any value: the identity of merge."""
        return no_moments(scheme, like)

    def update(self, state: Moments, x: Tensor, scheme: Scheme) -> Moments:
        """Return the moments of the values so far and of x; an empty x changes nothing."""
        return merged(state, moments(x, scheme)) if x.numel() else state

    def merge(self, a: Moments, b: Moments) -> Moments:
        """Return the moments of both."""
        return merged(a, b)

    def range(self, state: Moments, scheme: Scheme) -> Range:
        """Return the clipped range."""
        mean, std = mean_and_std(state)
        low = torch.maximum(mean - self.k * std, state.low)
        return Range(low.float(), torch.minimum(mean + self.k * std, state.high).float())

    def finalize(self, state: Moments, scheme: Scheme) -> Affine:
        """Return the qparams of the clipped range."""
        return from_range(*self.range(state, scheme), scheme)
