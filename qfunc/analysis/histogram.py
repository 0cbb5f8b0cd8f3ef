"""Histograms of tensors relative to the range of their codes; their size does not depend on the number of batches."""

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
"""The number of bins of a histogram; the middle half spans the clipping range."""


@frozen
class Histogram:
    """The float values of one quantized tensor.

    `low` and `high` are the ends of the clipping range; with several scales, of the widest.  `counts` has `BINS` bins
    of equal width over the range extended by half its width on both sides, and one entry before and after them for
    values outside.  `clipped` counts the values that the quantizer clips, each by its own scale.
    """

    low: float
    high: float
    minimum: float
    maximum: float
    clipped: int
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """The number of values."""
        return sum(self.counts)

    @property
    def share(self) -> float:
        """The share of the values that is clipped."""
        return self.clipped / max(self.total, 1)


def clipping_range(qparams: Affine, scheme: Scheme) -> tuple[float, float]:
    """Return the smallest and the largest value of the codes, over all scales.

    Integers: s (qmin - z) to s (qmax - z); floats and levels: s times their ends; logarithms: +- s 2^(qmax / k)
    with k steps per octave.

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
        """Count the values of one batch; NaN is not counted."""
        unclipped = in_range(x, self.qparams, self.scheme)
        value = x.detach().flatten().float()
        if bool(value.isnan().any()):
            unclipped, value = unclipped | x.isnan(), value[~value.isnan()]
        if not value.numel():
            return
        place = ((value.double() - self.start) / self.width).floor_().clamp_(-1, BINS).long() + 1
        low, high = torch.aminmax(value)
        clipped = unclipped.numel() - int(unclipped.sum())
        self.join(torch.bincount(place, minlength=BINS + 2), float(low), float(high), clipped)

    def join(self, counts: Tensor | None, minimum: float, maximum: float, clipped: int) -> None:
        """Add the counts of another `Counter`, the result of its `state`."""
        if self.counts is None or counts is None:
            self.counts = counts if self.counts is None else self.counts
        else:
            self.counts = self.counts + counts
        self.minimum, self.maximum = min(self.minimum, minimum), max(self.maximum, maximum)
        self.clipped += clipped

    def state(self) -> tuple[Tensor | None, float, float, int]:
        """Return the arguments of `join`."""
        return self.counts, self.minimum, self.maximum, self.clipped

    def histogram(self) -> Histogram:
        """Return the counts so far."""
        counts = (0,) * (BINS + 2) if self.counts is None else tuple(self.counts.tolist())
        return Histogram(self.low, self.high, self.minimum, self.maximum, self.clipped, counts)
