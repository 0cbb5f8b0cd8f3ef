"""The initial scale and offset of LSQ+."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from qfunc.estimators.initial_scale import from_scale, largest
from qfunc.estimators.moments import Moments, mean_and_std, merged, moments, no_moments
from qfunc.numerics.qparams import Affine, from_range
from qfunc.specs import Format, Int, Scheme


@frozen
class LsqPlusInit:
    """Symmetric: s = max(|mean - 3 std|, |mean + 3 std|) / 2^(b-1).  Affine: s = (max - min)/(p - n), beta = min - n s.

    n and p are qmin and qmax; mean, std (the sample standard deviation), min and max are over all values of all
    batches.  2^(b-1) is the number of codes on the longer side of zero, max(-qmin, qmax + 1), and the largest value
    of formats without integers.  The offset beta becomes the zero point R(-beta/s).  Hardware requires it to be a
    code, so the range includes zero, as in `numerics.from_range`.  The paper's other initialization of activations,
    the smallest squared error over a few batches, is the estimator `Mse`.
    MQBench's LSQPlusObserver divides by 2^b, which is half the paper's scale, and does so for activations, too.

    Source: Bhalgat et al., arXiv:2004.09576, section 4.2.

    >>> x, lsq = torch.tensor([-1.0, 1.0]), LsqPlusInit()
    >>> lsq.finalize(lsq.update(lsq.init(Scheme(), x), x, Scheme()), Scheme()).scale.item()  # 3 sqrt(2) / 128
    0.03314562886953354
    """

    def init(self, scheme: Scheme, like: Tensor) -> Moments:
        """Return the state before any value: the identity of merge."""
        return no_moments(scheme, like)

    def update(self, state: Moments, x: Tensor, scheme: Scheme) -> Moments:
        """Return the moments of the values so far and of x; an empty x changes nothing."""
        return merged(state, moments(x, scheme)) if x.numel() else state

    def merge(self, a: Moments, b: Moments) -> Moments:
        """Return the moments of both."""
        return merged(a, b)

    def finalize(self, state: Moments, scheme: Scheme) -> Affine:
        """Return the qparams of the formulas."""
        if not scheme.symmetric:
            return from_range(state.low, state.high, scheme)
        mean, std = mean_and_std(state)
        reach = torch.maximum((mean - 3 * std).abs(), (mean + 3 * std).abs())
        return from_scale(reach / _longer_side(scheme.format), state.low, torch.zeros_like(state.mean), scheme)


def _longer_side(fmt: Format) -> float:
    return float(max(-fmt.qmin, fmt.qmax + 1)) if isinstance(fmt, Int) else largest(fmt)
