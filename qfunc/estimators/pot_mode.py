"""PotMode: the power-of-two scale that most batches choose, as in Vitis AI's calibration of activations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.estimators.error import error_of
from qfunc.estimators.minmax import Range, nothing_seen
from qfunc.estimators.power_of_two import position, with_powers_of_two
from qfunc.estimators.quantile import BINS
from qfunc.estimators.sketch import empty, updated
from qfunc.numerics.qparams import Affine, from_range
from qfunc.specs import Int, Scheme

CANDIDATES = 5
COARSEST = -127


class Votes(NamedTuple):
    """The range of all batches, and the number of batches that chose each e, per block: int64 [*shape, finest + 128]."""

    low: Tensor
    high: Tensor
    votes: Tensor


@frozen
class PotMode:
    """s = 2^-e, where e is the most frequent choice of the batches; of equally frequent ones, the smallest.

    A batch chooses the e in e0 .. e0+4, at most `finest`, with the smallest sum |x_hat - x|^2; of equal ones, the
    smallest.  e0 = floor(log2(1 / max(min/qmin, max/qmax))) is the finest scale that does not clip.  x_hat is
    rounded by the scheme.  With a zero point, e0 is the finest scale of the range and each next e halves the range.

    Args:
        finest: The largest e.
    Raises:
        SpecError: 2^-finest is not a normal float32.
        CalibrationError: by `calibrate`, if a value is NaN or infinite.
    Source: MQBench, mqbench/observer.py, PoTModeObserver (after Vitis AI's NNDCT).  Its e0 = 0 for scales below
        2^-15, which rounds small tensors to 0, is not implemented: `finest` bounds them.

    >>> estimator, scheme, x = PotMode(), Scheme(), torch.tensor([-1.0, 0.5])
    >>> estimator.finalize(estimator.update(estimator.init(scheme, x), x, scheme), scheme).scale.item()
    0.0078125
    """

    finest: int = field(default=12, validator=position)

    def init(self, scheme: Scheme, like: Tensor) -> Votes:
        """Return the state before any vote: the identity of merge."""
        low, high = nothing_seen(scheme, like)
        slots = (*low.shape, self.finest - COARSEST + 1)
        return Votes(low, high, torch.zeros(slots, dtype=torch.int64, device=low.device))

    def update(self, state: Votes, x: Tensor, scheme: Scheme) -> Votes:
        """Return the votes with the vote of x; an empty x changes nothing."""
        if x.numel() == 0:
            return state
        powers = self.scheme(scheme)
        sketch = updated(empty(scheme, x), x, scheme, BINS)
        factors = torch.exp2(-torch.arange(CANDIDATES, device=x.device)).view(-1, *[1] * sketch.low.ndim)
        low, high = _reach(sketch.low, sketch.high, powers)
        low, high = factors * low.clamp(max=0), factors * high.clamp(min=0)
        cost = error_of(sketch, BINS, powers, 2.0)(low, high)
        scales = from_range(low, high, powers).scale
        # The coarsest of the best; candidates of equal cost compare equal in float64.
        best = torch.where(cost == cost.amin(0), scales.abs(), 0.0).amax(0)
        chosen = 1 - torch.frexp(torch.where(best.isfinite() & (best > 0), best, 1.0)).exponent.long()
        slot = (chosen - COARSEST).clamp(0, state.votes.shape[-1] - 1).unsqueeze(-1)
        votes = state.votes.scatter_add(-1, slot, torch.ones_like(slot))
        return Votes(torch.minimum(state.low, sketch.low), torch.maximum(state.high, sketch.high), votes)

    def merge(self, a: Votes, b: Votes) -> Votes:
        """Return the votes of both."""
        return Votes(torch.minimum(a.low, b.low), torch.maximum(a.high, b.high), a.votes + b.votes)

    def range(self, state: Votes, scheme: Scheme) -> Range:
        """Return the range of all batches, times the power of two that gives the elected scale."""
        powers = self.scheme(scheme)
        low, high = _reach(state.low, state.high, powers)
        slots = state.votes.shape[-1]
        exponent = (state.votes * slots - torch.arange(slots, device=low.device)).argmax(-1) + COARSEST
        whole = from_range(low, high, powers).scale.abs()
        factor = torch.exp2(-exponent.double() - torch.log2(whole.double()).round())
        seen = state.votes.any(-1) & low.isfinite() & high.isfinite()
        return Range(*(torch.where(seen, (end.double() * factor).float(), end) for end in (low, high)))

    def finalize(self, state: Votes, scheme: Scheme) -> Affine:
        """Return the qparams of the elected scale."""
        return from_range(*self.range(state, scheme), self.scheme(scheme))

    def scheme(self, scheme: Scheme) -> Scheme:
        """Return the scheme with power-of-two scales that do not clip."""
        return with_powers_of_two(scheme, "ceil", self.finest)


def _reach(low: Tensor, high: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    # max(min/qmin, max/qmax) in place of max(-min, max)/qmax of `from_range`: Vitis uses the extra code below 0.
    fmt = scheme.format
    if scheme.zero_point is None and isinstance(fmt, Int) and fmt.qmin < 0 and scheme.scale.divisor == "qmax":
        low = (low.double() * fmt.qmax / -fmt.qmin).float()
    return low, high
