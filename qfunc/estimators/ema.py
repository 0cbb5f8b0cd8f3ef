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
    """The average so far, how many batches made it, and the first batch's range, which merging needs."""

    value: Range
    batches: Tensor
    first: Range


def _decay(instance: object, attribute: object, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise SpecError(where="Ema.decay", found=repr(value), wanted="a number in [0, 1)", do="Give such a number.")


def _inner(instance: object, attribute: object, value: object) -> None:
    methods = ("init", "update", "range")
    if isinstance(value, type) or not all(callable(getattr(value, name, None)) for name in methods):
        wanted, do = (
            "an estimator that offers range(state, scheme) -> Range",
            "Give one of them, such as MinMax() or StdClip().",
        )
        raise SpecError(where="Ema.inner", found=repr(value), wanted=wanted, do=do)


@frozen
class Ema:
    """low <- decay*low + (1-decay)*low(batch), high likewise; the first batch initialises both.

    low(batch) and high(batch) are the inner estimator's range of that batch alone.  Each batch counts the
    same, whatever its size.

    Args:
        inner: The estimator of one batch's range: one with `range(state, scheme) -> Range`.
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
        """No batches yet."""
        nothing = nothing_seen(scheme, like)
        return Average(nothing, torch.zeros((), dtype=torch.int64, device=like.device), nothing)

    def update(self, state: Average, x: Tensor, scheme: Scheme) -> Average:
        """The average after one more batch; an empty x changes nothing."""
        if x.numel() == 0:
            return state
        seen = self.inner.range(self.inner.update(self.inner.init(scheme, x), x, scheme), scheme)
        old, new, empty = state.value, 1 - self.decay, state.batches == 0
        value = Range(self.decay * old.low + new * seen.low, self.decay * old.high + new * seen.high)
        return Average(_either(empty, seen, value), state.batches + 1, _either(empty, seen, state.first))

    def merge(self, a: Average, b: Average) -> Average:
        """The average as if b's batches had come after a's: an ordered monoid.

        value = b.value + decay^n_b * (a.value - b.first), for b's first batch counted in full.
        """
        weight = self.decay ** b.batches.double()
        ends = zip(a.value, b.value, b.first, strict=True)
        # float64, where the difference of two float32 numbers cannot overflow
        value = Range(*((vb + weight * (va.double() - fb)).float() for va, vb, fb in ends))
        value = _either(a.batches == 0, b.value, _either(b.batches == 0, a.value, value))
        return Average(value, a.batches + b.batches, _either(a.batches == 0, b.first, a.first))

    def range(self, state: Average, scheme: Scheme) -> Range:
        """The average."""
        return state.value

    def finalize(self, state: Average, scheme: Scheme) -> Affine:
        """The qparams of the average range."""
        return from_range(state.value.low, state.value.high, scheme)


def _either(condition: Tensor, this: Range, that: Range) -> Range:
    return Range(torch.where(condition, this.low, that.low), torch.where(condition, this.high, that.high))
