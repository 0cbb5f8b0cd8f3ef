"""Clipping where the information lost is smallest: ONNX Runtime's calibration."""

from __future__ import annotations

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.estimators.binning import Uniform
from qfunc.estimators.entropy import bin_count
from qfunc.estimators.minmax import Range
from qfunc.estimators.sketch import Sketch, clipped, empty, merged, nothing, on_the_line, updated
from qfunc.numerics.qparams import Affine, from_range
from qfunc.specs import Scheme

SMOOTH = 1e-4
"""What an empty bin gets, taken from the others."""


def _group_count(instance: object, attribute: object, value: object) -> None:
    if type(value) is not int or not 2 <= value <= 1 << 16 or value % 2:
        wanted = "an even int in [2, 65536]"
        raise SpecError(where="OrtEntropy.groups", found=repr(value), wanted=wanted, do="Give 128 or another one.")


@frozen
class OrtEntropy:
    """ONNX Runtime's entropy calibration: two-sided bins around 0, cut at both ends alike, zeros smoothed.

    Of 2m bins, for every i in [groups/2, m]: h = the bins from m - i to m + i, the latter included where there
    is one; P = h with all beyond added to its two ends; Q = h cut into `groups` runs of floor(len/groups) bins
    (what remains joins the last run's sum, but its bins stay 0), every bin of a run floor(sum / number of
    non-zero bins of P).  In both, each empty bin gets 1e-4, in equal parts from the others.  The range is that
    of the first i with the smallest KL(P || Q).

    ONNX Runtime's own default of 128 bins leaves one i to choose from, the whole range; and its bins' width is
    of the first batch, where this one is the power of two with which bins/2 to bins reach over [-max|x|, max|x|].

    Args:
        bins: The most bins, a power of two.
        groups: The quantized bins; ONNX Runtime's are 128 for codes of any width.
    Raises:
        SpecError: an argument outside its range.
        CalibrationError: by `calibrate`, if a value is NaN or infinite.
    Source: ONNX Runtime 1.31, quantization/calibrate.py, HistogramCollector.get_entropy_threshold.

    >>> x = torch.linspace(-0.999, 0.999, 9999).atanh() ** 3  # up to 54.9
    >>> estimator, scheme = OrtEntropy(), Scheme()
    >>> estimator.range(estimator.update(estimator.init(scheme, x), x, scheme), scheme).high
    tensor(37.)
    """

    bins: int = field(default=512, validator=bin_count)
    groups: int = field(default=128, validator=_group_count)

    def init(self, scheme: Scheme, like: Tensor) -> Sketch:
        """Nothing seen: the identity of merge."""
        return empty(scheme, like)

    def update(self, state: Sketch, x: Tensor, scheme: Scheme) -> Sketch:
        """The statistics after x; an empty x changes nothing."""
        return updated(state, x, scheme, Uniform(self.bins // 2))

    def merge(self, a: Sketch, b: Sketch) -> Sketch:
        """The statistics of a's data and b's."""
        return merged(a, b, Uniform(self.bins // 2))

    def range(self, state: Sketch, scheme: Scheme) -> Range:
        """The range between the clipping bounds, in float32."""
        if nothing(state):
            return Range(state.low, state.high)
        edges, counts = on_the_line(state, Uniform(self.bins // 2))
        rows = [least_divergent_ends(row, self.groups) for row in counts.reshape(-1, self.bins)]
        ends = torch.tensor(rows, device=edges.device).view(*state.low.shape, 2)
        return clipped(state, *edges.gather(-1, ends).unbind(-1))

    def finalize(self, state: Sketch, scheme: Scheme) -> Affine:
        """The qparams of the range."""
        return from_range(*self.range(state, scheme), scheme)


def least_divergent_ends(counts: Tensor, groups: int) -> tuple[int, int]:
    """The first and the last edge of the part to keep."""
    half = _half_in_use(counts)
    middle = len(counts) // 2
    counts = counts[middle - half : middle + half].cpu().double()  # a loop of small steps
    if half < groups // 2:
        return middle - half, middle + half
    reach = range(groups // 2, half + 1)
    divergence = [_divergence(counts, i, groups) for i in reach]
    best = reach[divergence.index(min(divergence))]
    return middle - best, min(middle + best + 1, middle + half)


def _half_in_use(counts: Tensor) -> int:
    # The bins of one side up to the largest magnitude: ONNX Runtime has no empty ones beyond it.
    middle = len(counts) // 2
    places = (counts[middle:] + counts[:middle].flip(0)).nonzero()
    return int(places[-1]) + 1 if len(places) else 1


def _divergence(counts: Tensor, i: int, groups: int) -> float:
    middle = len(counts) // 2
    start, end = middle - i, min(middle + i + 1, len(counts))
    held, run = counts[start:end], (end - start) // groups
    p = held.clone()
    p[0] += counts[:start].sum()
    p[-1] += counts[end:].sum()
    sums = held[: run * groups].view(groups, run).sum(-1)
    sums[-1] += held[run * groups :].sum()
    sizes = (p[: run * groups] != 0).view(groups, run).sum(-1)
    q = torch.zeros_like(p)
    q[: run * groups] = torch.where(sizes > 0, sums.div(sizes, rounding_mode="floor"), 0.0).repeat_interleave(run)
    if not bool(p.any()) or not bool(q.any()):
        return torch.inf
    p, q = _smoothed(p), _smoothed(q)
    p, q = p / p.sum(), q / q.sum()
    return float((p * (p / q).log()).sum())


def _smoothed(h: Tensor) -> Tensor:
    zero = h == 0
    zeros = int(zero.sum())
    return h + torch.where(zero, SMOOTH, -SMOOTH * zeros / (len(h) - zeros))
