"""The initial scale of LSQ."""

from __future__ import annotations

from typing import NamedTuple

import torch
from attrs import frozen
from torch import Tensor

from qfunc.estimators.initial_scale import from_scale, largest_above_zero
from qfunc.estimators.minmax import nothing_seen
from qfunc.estimators.moments import in_units
from qfunc.numerics.qparams import Affine, observed
from qfunc.specs import Scheme


class Magnitudes(NamedTuple):
    """The number of values of a block (int64 []), the sums of |x| and of x in float64, and the smallest value in float32."""

    number: Tensor
    total: Tensor
    signed: Tensor
    low: Tensor


@frozen
class LsqInit:
    """s = 2 mean|x| / sqrt(Q_p) over all values of all batches, z = qmin + R(min(-min(x, 0)/s, r (qmax - qmin))) or 0.

    Q_p is qmax of integers, 2^(b-1)-1 if signed and 2^b-1 if not, and the largest value of other formats.  The
    paper has no zero point: with one, Q_p is qmax - qmin, and r = (mean|x| - mean x) / (2 mean|x|) is the part of the sum
    of |x| that negative x have, so that both signs get their part of few codes.  MQBench's LSQObserver has
    z = R(qmin - min(x)/s), often no code or the last one at 2 or 3 bits, and uses only the last batch.

    Source: Esser et al., arXiv:1902.08153, section 2.1; MQBench, LSQObserver (zero point).

    >>> x, lsq = torch.tensor([-1.0, 2.0, 3.0]), LsqInit()
    >>> lsq.finalize(lsq.update(lsq.init(Scheme(), x), x, Scheme()), Scheme()).scale.item()  # 4 / sqrt(127)
    0.35494258999824524
    """

    def init(self, scheme: Scheme, like: Tensor) -> Magnitudes:
        """Return the state before any value: the identity of merge."""
        low = nothing_seen(scheme, like).low
        number = torch.zeros((), dtype=torch.int64, device=like.device)
        zero = torch.zeros_like(low, dtype=torch.float64)
        return Magnitudes(number, zero, zero, low)

    def update(self, state: Magnitudes, x: Tensor, scheme: Scheme) -> Magnitudes:
        """Return the sums with x added; an empty x changes nothing."""
        if x.numel() == 0:
            return state
        low, high = observed(x, scheme)
        ratio, unit, axes = in_units(x, low, high, scheme)
        signed = ratio.sum(axes).double() * unit
        total = ratio.abs_().sum(axes).double() * unit
        number = state.number + ratio.numel() // unit.numel()
        return Magnitudes(number, state.total + total, state.signed + signed, torch.minimum(state.low, low))

    def merge(self, a: Magnitudes, b: Magnitudes) -> Magnitudes:
        """Return the sums of both."""
        return Magnitudes(a.number + b.number, a.total + b.total, a.signed + b.signed, torch.minimum(a.low, b.low))

    def finalize(self, state: Magnitudes, scheme: Scheme) -> Affine:
        """Return the qparams of the formulas."""
        mean = state.total / state.number.clamp(min=1)
        share = ((1 - state.signed / state.total) / 2).nan_to_num(nan=0.0).clamp(0, 1)  # 0/0 where all values are 0
        return from_scale(2 * mean / largest_above_zero(scheme) ** 0.5, state.low, share, scheme)
