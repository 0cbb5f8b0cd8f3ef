"""Histograms of tensors against the range that their codes can hold; of fixed size, whatever the number of batches."""

from __future__ import annotations

import math

import torch
from attrs import frozen
from torch import Tensor

from qfunc.numerics import minifloat
from qfunc.numerics.affine import in_range
from qfunc.numerics.qparams import Affine
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs import Float, Int, Levels, Log, Scheme

BINS = 96
"""Bins of a histogram; those from a quarter to three quarters span the clipping range."""


@frozen
class Histogram:
    """The float values of one quantized tensor.

    `low` and `high` are the ends of the clipping range, of several scales the outermost.  `counts` has
    `BINS` bins of equal width over the range widened by half of itself at either end, and before and after them
    what lies beyond.  `clipped` counts the values that the quantizer clips, each by its own scale.
    """

    low: float
    high: float
    minimum: float
    maximum: float
    clipped: int
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """How many values."""
        return sum(self.counts)

    @property
    def share(self) -> float:
        """The share of the values that is clipped."""
        return self.clipped / max(self.total, 1)


def clipping_range(qparams: Affine, scheme: Scheme) -> tuple[float, float]:
    """Return the smallest and the largest value that the codes can hold, over all scales.

    Integers: s (qmin - z) to s (qmax - z); floats and levels: s times their ends; logarithms: +- s 2^(qmax / k)
    with k steps an octave.

    >>> clipping_range(Affine(torch.tensor([0.5, 1.0]), torch.zeros(2)), Scheme())
    (-128.0, 127.0)
    """
    scale = (qparams.scale if qparams.outer is None else qparams.scale * qparams.outer).double()
    match scheme.format:
        case Int(qmin=low, qmax=high):
            zero = qparams.zero_point.double()
            ends = scale * (low - zero), scale * (high - zero)
        case Float() as fmt:
            ends = -scale * minifloat.largest(fmt) * fmt.signed, scale * minifloat.largest(fmt)
        case Levels(values=values):
            ends = scale * values[0], scale * values[-1]
        case Log() as fmt:
            top = 2.0 ** (((1 << fmt.magnitude_bits) - 1) / fmt.steps_per_octave)
            ends = -scale * top, scale * top
    return float(ends[0].min()), float(ends[1].max())


class Counter:
    """The running histogram of one site with static qparams."""

    def __init__(self, module: FakeQuantize) -> None:
        self.scheme, self.qparams = module.site.scheme, module.qparams()
        self.low, self.high = clipping_range(self.qparams, self.scheme)
        self.start = self.low - (self.high - self.low) / 2
        self.width = 2 * (self.high - self.low) / BINS
        self.counts: Tensor | None = None
        self.minimum, self.maximum, self.clipped = math.inf, -math.inf, 0

    def add(self, x: Tensor) -> None:
        """Counts the values of one batch; NaN is none."""
        kept = in_range(x, self.qparams, self.scheme)
        value = x.detach().flatten().float()
        if bool(value.isnan().any()):
            kept, value = kept | x.isnan(), value[~value.isnan()]
        if not value.numel():
            return
        place = ((value.double() - self.start) / self.width).floor_().clamp_(-1, BINS).long() + 1
        low, high = torch.aminmax(value)
        clipped = kept.numel() - int(kept.sum())
        self.join(torch.bincount(place, minlength=BINS + 2), float(low), float(high), clipped)

    def join(self, counts: Tensor | None, minimum: float, maximum: float, clipped: int) -> None:
        """Adds the counts of other values: what `state` of another `Counter` gives."""
        if self.counts is None or counts is None:
            self.counts = counts if self.counts is None else self.counts
        else:
            self.counts = self.counts + counts
        self.minimum, self.maximum = min(self.minimum, minimum), max(self.maximum, maximum)
        self.clipped += clipped

    def state(self) -> tuple[Tensor | None, float, float, int]:
        """What `join` takes."""
        return self.counts, self.minimum, self.maximum, self.clipped

    def histogram(self) -> Histogram:
        """Return the counts so far."""
        counts = (0,) * (BINS + 2) if self.counts is None else tuple(self.counts.tolist())
        return Histogram(self.low, self.high, self.minimum, self.maximum, self.clipped, counts)


__all__ = ["BINS", "Counter", "Histogram", "clipping_range"]
