"""An exponential moving average of another estimator's range."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.estimators.minmax import MinMax, Range
from qfunc.numerics.qparams import Affine, from_range
from qfunc.specs import Scheme


class Average(NamedTuple):
    """The average so far, how many batches made it, and the first batch's range, which merging needs."""

    value: Range
    batches: Tensor
    first: Range


def _decay(instance: object, attribute: object, value: object) -> None:
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise SpecError(where="Ema.decay", found=repr(value), wanted="a number in [0, 1)", do="Give such a number.")


@frozen
class Ema:
    """low <- decay*low + (1-decay)*low(batch), high likewise; the first batch initialises both.

    Args:
        inner: The estimator of one batch's range.
        decay: In [0, 1); 0.9 as in MQBench.
    Raises:
        SpecError: a decay outside [0, 1).

    >>> ema, state = Ema(decay=0.5), Ema().init(Scheme(), torch.empty(1))
    >>> for batch in ([0.0, 1.0], [0.0, 2.0]):
    ...     state = ema.update(state, torch.tensor(batch), Scheme())
    >>> state.value.high.item()
    1.5
    """

    inner: Any = field(default=MinMax())
    decay: float = field(default=0.9, validator=_decay)

    def init(self, scheme: Scheme, like: Tensor) -> Average:
        """No batches yet."""
        empty = self.inner.init(scheme, like)
        return Average(empty, torch.zeros((), dtype=torch.int64, device=like.device), empty)

    def update(self, state: Average, x: Tensor, scheme: Scheme) -> Average:
        """The average after one more batch; an empty x changes nothing."""
        if x.numel() == 0:
            return state
        seen = self.inner.update(self.inner.init(scheme, x), x, scheme)
        if int(state.batches) == 0:
            return Average(seen, torch.ones_like(state.batches), seen)
        old, new = state.value, 1 - self.decay
        value = Range(self.decay * old.low + new * seen.low, self.decay * old.high + new * seen.high)
        return Average(value, state.batches + 1, state.first)

    def merge(self, a: Average, b: Average) -> Average:
        """The average as if b's batches had come after a's: an ordered monoid.

        value = b.value + decay^n_b * (a.value - b.first), for b's first batch counted in full.
        """
        if int(a.batches) == 0 or int(b.batches) == 0:
            return b if int(a.batches) == 0 else a
        weight = self.decay ** int(b.batches)
        value = Range(*(vb + weight * (va - fb) for va, vb, fb in zip(a.value, b.value, b.first, strict=True)))
        return Average(value, a.batches + b.batches, a.first)

    def finalize(self, state: Average, scheme: Scheme) -> Affine:
        """The qparams of the average range."""
        return from_range(state.value.low, state.value.high, scheme)
