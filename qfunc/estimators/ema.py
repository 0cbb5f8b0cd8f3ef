"""An exponential moving average of another estimator's range."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.estimators.minmax import MinMax, Range, nothing_seen
from qfunc.numerics.qparams import Affine, from_range
from qfunc.specs import Scheme


class Average(NamedTuple):
    """The average so far, the number of its batches, and the range of the first batch, which `merge` needs."""

    value: Range
    batches: Tensor
    first: Range


def _decay(instance: object, attribute: object, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise SpecError(where="Ema.decay", found=repr(value), wanted="a number in [0, 1)", do="Give such a number.")


def _inner(instance: object, attribute: object, value: object) -> None:
    methods = ("init", "update", "range")
    if isinstance(value, type) or not all(callable(getattr(value, name, None)) for name in methods):
        wanted = "an estimator that offers range(state, scheme) -> Range"
        do = "Give one of them, such as MinMax() or StdClip()."
        raise SpecError(where="Ema.inner", found=repr(value), wanted=wanted, do=do)


@frozen
class Ema:
    """low <- decay*low + (1-decay)*low(batch), and high likewise; the first batch initialises both.

    low(batch) and high(batch) are the inner estimator's range of that batch alone.  Every batch has the same
    weight, whatever its size.

    Args:
        inner: The estimator of one batch's range; it needs the method `range(state, scheme) -> Range`.
        decay: In [0, 1); 0.9 as in MQBench.
    Raises:
        SpecError: a decay outside [0, 1), or an inner estimator without `range`.
    Source: Jacob et al., arXiv:1712.05877, section 3.1; MQBench, EMAMinMaxObserver.

    >>> ema, state = Ema(decay=0.5), Ema().init(Scheme(), torch.empty(1))
    >>> for batch in ([0.0, 1.0], [0.0, 2.0]):
    ...     state = ema.update(state, torch.tensor(batch), Scheme())
    >>> state.value.high.item()
    1.5
    """

    inner: Any = field(default=MinMax(), validator=_inner)
    decay: float = field(default=0.9, validator=_decay)

    def init(self, scheme: Scheme, like: Tensor) -> Average:
        """Return the state before any batch."""
        empty = nothing_seen(scheme, like)
        return Average(empty, torch.zeros((), dtype=torch.int64, device=like.device), empty)

    def update(self, state: Average, x: Tensor, scheme: Scheme) -> Average:
        """Return the average after one more batch; an empty x changes nothing."""
        if x.numel() == 0:
            return state
        batch = self.inner.range(self.inner.update(self.inner.init(scheme, x), x, scheme), scheme)
        old, new, empty = state.value, 1 - self.decay, state.batches == 0
        value = Range(self.decay * old.low + new * batch.low, self.decay * old.high + new * batch.high)
        return Average(_either(empty, batch, value), state.batches + 1, _either(empty, batch, state.first))

    def merge(self, a: Average, b: Average) -> Average:
        """Return the average as if b's batches followed a's: an ordered monoid.

        value = b.value + decay^n_b * (a.value - b.first), because b's first batch had full weight.
        """
        weight = self.decay ** b.batches.double()
        ends = zip(a.value, b.value, b.first, strict=True)
        # In float64 the difference of two float32 numbers cannot overflow.
        value = Range(*((vb + weight * (va.double() - fb)).float() for va, vb, fb in ends))
        value = _either(a.batches == 0, b.value, _either(b.batches == 0, a.value, value))
        return Average(value, a.batches + b.batches, _either(a.batches == 0, b.first, a.first))

    def range(self, state: Average, scheme: Scheme) -> Range:
        """Return the average."""
        return state.value

    def finalize(self, state: Average, scheme: Scheme) -> Affine:
        """Return the qparams of the average range."""
        return from_range(state.value.low, state.value.high, scheme)


def _either(condition: Tensor, this: Range, that: Range) -> Range:
    return Range(torch.where(condition, this.low, that.low), torch.where(condition, this.high, that.high))
