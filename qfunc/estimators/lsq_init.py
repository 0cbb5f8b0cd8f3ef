"""The initial scale of LSQ."""

from __future__ import annotations

from typing import NamedTuple

import torch
from attrs import frozen
from torch import Tensor

from qfunc.estimators.initial_scale import from_scale, largest
from qfunc.estimators.minmax import nothing_seen
from qfunc.estimators.moments import in_units
from qfunc.numerics.qparams import Affine, observed
from qfunc.specs import Scheme


class Magnitudes(NamedTuple):
    """The number of values of a block (int64 []), the sum of |x| in float64, and the smallest value in float32."""

    number: Tensor
    total: Tensor
    low: Tensor


@frozen
class LsqInit:
    """s = 2 mean|x| / sqrt(Q_p) over all values of all batches, z = clamp(R(qmin - min(x)/s), qmin, qmax) or 0.

    Q_p is qmax of integers, 2^(b-1)-1 if signed and 2^b-1 if not, and the largest value of other formats.  The
    paper has no zero point; this one is MQBench's, clamped to the codes.  MQBench's LSQObserver uses only the
    last batch.

    Source: Esser et al., arXiv:1902.08153, section 2.1; MQBench, LSQObserver (zero point).

    >>> x, lsq = torch.tensor([-1.0, 2.0, 3.0]), LsqInit()
    >>> lsq.finalize(lsq.update(lsq.init(Scheme(), x), x, Scheme()), Scheme()).scale.item()  # 4 / sqrt(127)
    0.35494258999824524
    """

    def init(self, scheme: Scheme, like: Tensor) -> Magnitudes:
        """Return the state before any value: the identity of merge."""
        low = nothing_seen(scheme, like).low
        number = torch.zeros((), dtype=torch.int64, device=like.device)
        return Magnitudes(number, torch.zeros_like(low, dtype=torch.float64), low)

    def update(self, state: Magnitudes, x: Tensor, scheme: Scheme) -> Magnitudes:
        """Return the sums with x added; an empty x changes nothing."""
        if x.numel() == 0:
            return state
        low, high = observed(x, scheme)
        ratio, unit, axes = in_units(x, low, high, scheme)
        total = ratio.abs_().sum(axes).double() * unit
        return Magnitudes(state.number + ratio.numel() // unit.numel(), state.total + total, torch.minimum(state.low, low))

    def merge(self, a: Magnitudes, b: Magnitudes) -> Magnitudes:
        """Return the sums of both."""
        return Magnitudes(a.number + b.number, a.total + b.total, torch.minimum(a.low, b.low))

    def finalize(self, state: Magnitudes, scheme: Scheme) -> Affine:
        """Return the qparams of the formula's scale."""
        mean = state.total / state.number.clamp(min=1)
        return from_scale(2 * mean / largest(scheme.format) ** 0.5, state.low, scheme)
