"""Clip at quantiles: Quantile of the magnitudes, Percentile of both tails."""

from __future__ import annotations

import math

from attrs import field, frozen
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.estimators.binning import LogLinear
from qfunc.estimators.minmax import Range
from qfunc.estimators.sketch import (
    TOLERANCE,
    Sketch,
    clipped,
    empty,
    merged,
    nothing,
    of_magnitudes,
    of_values,
    ranked,
    updated,
)
from qfunc.numerics.qparams import Affine, from_range
from qfunc.specs import Scheme

BINS = LogLinear()


def _fraction(instance: object, attribute: object, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise SpecError(where="Quantile.q", found=repr(value), wanted="a number in (0, 1]", do="Give such a number.")


@frozen
class Quantile:
    """low = max(min(x), -c), high = min(max(x), c), c the ceil(q n)-th smallest of the n magnitudes |x|.

    Up to 8192 elements per block, c is exact; beyond, its error is less than c/128 (one bin of a log-linear
    histogram).  `Ema(Quantile())` is MQBench's EMAQuantileObserver, which uses bins of width max|x|/2048.

    Args:
        q: The share of the magnitudes that is not clipped, in (0, 1].
    Raises:
        SpecError: a q outside (0, 1].
        CalibrationError: by `calibrate`, if a value is NaN or infinite.
    Source: MQBench, mqbench/observer.py, EMAQuantileObserver.

    >>> import torch
    >>> estimator, x = Quantile(0.75), torch.tensor([-1.0, 2.0, 3.0, -100.0])
    >>> estimator.range(estimator.update(estimator.init(Scheme(), x), x, Scheme()), Scheme())
    Range(low=tensor(-3.), high=tensor(3.))
    """

    q: float = field(default=0.99999, validator=_fraction)

    def init(self, scheme: Scheme, like: Tensor) -> Sketch:
        """Return the empty state: the identity of merge."""
        return empty(scheme, like)

    def update(self, state: Sketch, x: Tensor, scheme: Scheme) -> Sketch:
        """Return the statistics after x; an empty x changes nothing."""
        return updated(state, x, scheme, BINS)

    def merge(self, a: Sketch, b: Sketch) -> Sketch:
        """Return the statistics of the data of a and b."""
        return merged(a, b, BINS)

    def range(self, state: Sketch, scheme: Scheme) -> Range:
        """Return the range between the clipping bounds, in float32."""
        if nothing(state):
            return Range(state.low, state.high)
        kept = state.values.shape[-1]
        bound = _smallest(state.values.abs(), self.q) if kept else ranked(*of_magnitudes(state, BINS), self.q)
        return clipped(state, -bound, bound)

    def finalize(self, state: Sketch, scheme: Scheme) -> Affine:
        """Return the qparams of the range."""
        return from_range(*self.range(state, scheme), scheme)


def _percent(instance: Percentile, attribute: object, value: object) -> None:
    low, high = instance.low, instance.high
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (low, high))
    if not numbers or not 0 <= low < high <= 100:
        wanted = "0 <= low < high <= 100 percent"
        raise SpecError(where="Percentile.low, high", found=repr((low, high)), wanted=wanted, do="Give such numbers.")


@frozen
class Percentile:
    """The range between two percentiles: the ceil(n low/100)-th and the ceil(n high/100)-th smallest of n values.

    Up to 8192 elements per block, both are exact; beyond, their relative error is less than 1/128 (one bin of a
    log-linear histogram).  Fewer than n (100 - high)/100 elements of a tail are clipped.

    Args:
        low, high: In percent; 0 and 100 clip nothing.
    Raises:
        SpecError: not 0 <= low < high <= 100.
        CalibrationError: by `calibrate`, if a value is NaN or infinite.
    Source: ONNX Runtime quantization tool, HistogramCollector.compute_percentile (99.999 %, with half of the
        clipped share on each side); PPQ, TorchPercentileObserver.

    >>> import torch
    >>> estimator, x = Percentile(25, 75), torch.tensor([-100.0, 1.0, 2.0, 3.0])
    >>> estimator.range(estimator.update(estimator.init(Scheme(), x), x, Scheme()), Scheme())
    Range(low=tensor(-100.), high=tensor(2.))
    """

    low: float = field(default=0.001)
    high: float = field(default=99.999, validator=_percent)

    def init(self, scheme: Scheme, like: Tensor) -> Sketch:
        """Return the empty state: the identity of merge."""
        return empty(scheme, like)

    def update(self, state: Sketch, x: Tensor, scheme: Scheme) -> Sketch:
        """Return the statistics after x; an empty x changes nothing."""
        return updated(state, x, scheme, BINS)

    def merge(self, a: Sketch, b: Sketch) -> Sketch:
        """Return the statistics of the data of a and b."""
        return merged(a, b, BINS)

    def range(self, state: Sketch, scheme: Scheme) -> Range:
        """Return the range between the percentiles, in float32."""
        if nothing(state):
            return Range(state.low, state.high)
        shares = (self.low / 100, self.high / 100)
        if state.values.shape[-1]:
            return clipped(state, *(_smallest(state.values, share) for share in shares))
        edges, counts = of_values(state, BINS)
        return clipped(state, *(ranked(edges, counts, share) for share in shares))

    def finalize(self, state: Sketch, scheme: Scheme) -> Affine:
        """Return the qparams of the range."""
        return from_range(*self.range(state, scheme), scheme)


def _smallest(values: Tensor, share: float) -> Tensor:
    # The ceil(share n)-th smallest along the last axis, by selection.
    n = values.shape[-1]
    return values.kthvalue(max(1, math.ceil(share * n - TOLERANCE))).values
