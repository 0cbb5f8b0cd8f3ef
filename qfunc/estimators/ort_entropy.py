"""ONNX Runtime's entropy calibration: clip where the KL divergence is smallest."""

from __future__ import annotations

from functools import partial

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.estimators.binning import Uniform
from qfunc.estimators.entropy import bin_count
from qfunc.estimators.minmax import Range
from qfunc.estimators.sketch import Sketch, clipped, empty, merged, nothing, of_values, updated
from qfunc.numerics.qparams import Affine, from_range
from qfunc.specs import Scheme

SMOOTH = 1e-4
"""The value of an empty bin after smoothing; it is subtracted from the others in equal parts."""

AT_ONCE = 1 << 16
"""Number of terms evaluated together; they fit into the cache of one core."""


def _group_count(instance: object, attribute: object, value: object) -> None:
    if type(value) is not int or not 2 <= value <= 1 << 16 or value % 2:
        wanted = "an even int in [2, 65536]"
        raise SpecError(where="OrtEntropy.groups", found=repr(value), wanted=wanted, do="Give 128 or another one.")


@frozen
class OrtEntropy:
    """ONNX Runtime's entropy calibration: bins on both sides of 0, clipped symmetrically, with smoothed zeros.

    With 2m bins, for every i in [groups/2, m]: h = the bins from m - i to m + i, the latter included if it
    exists; P = h with the counts of all other bins added to its two ends; Q = h cut into `groups` runs of
    floor(len/groups) bins, every bin of a run floor(sum / number of non-zero bins of P) (the remainder is added to
    the sum of the last run, but its bins stay 0).  In both, each empty bin becomes 1e-4, subtracted in equal parts
    from the others.  The result is the range of the first i with the smallest KL(P || Q).

    ONNX Runtime's own default of 128 bins leaves only one i, the whole range.  Its bin width depends on the first
    batch; here it is the power of two at which bins/2 to bins cover [-max|x|, max|x|].

    Args:
        bins: The largest number of bins, a power of two.
        groups: The number of quantized bins; ONNX Runtime uses 128 for codes of any width.
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
        """Return the empty state: the identity of merge."""
        return empty(scheme, like)

    def update(self, state: Sketch, x: Tensor, scheme: Scheme) -> Sketch:
        """Return the statistics after x; an empty x changes nothing."""
        return updated(state, x, scheme, Uniform(self.bins // 2))

    def merge(self, a: Sketch, b: Sketch) -> Sketch:
        """Return the statistics of the data of a and b."""
        return merged(a, b, Uniform(self.bins // 2))

    def range(self, state: Sketch, scheme: Scheme) -> Range:
        """Return the range between the clipping bounds, in float32."""
        if nothing(state):
            return Range(state.low, state.high)
        edges, counts = of_values(state, Uniform(self.bins // 2))
        rows, search = counts.reshape(-1, self.bins), partial(least_divergent_ends, groups=self.groups)
        # While compiling, vmap keeps the trace independent of the number of rows.
        edge_indices = (
            torch.func.vmap(search)(rows) if torch.compiler.is_compiling() else torch.stack([search(row) for row in rows])
        )
        ends = edge_indices.view(*state.low.shape, 2)
        return clipped(state, *edges.gather(-1, ends).unbind(-1))

    def finalize(self, state: Sketch, scheme: Scheme) -> Affine:
        """Return the qparams of the range."""
        return from_range(*self.range(state, scheme), scheme)


def least_divergent_ends(counts: Tensor, groups: int) -> Tensor:
    """Return the first and the last edge of the part to keep, int64 [2].

    >>> least_divergent_ends(torch.tensor([0, 0, 1, 90, 80, 1, 0, 0]), 2)
    tensor([3, 6])
    """
    middle = len(counts) // 2
    # The number of bins per side up to the largest magnitude; ONNX Runtime's histogram ends there.
    sides = torch.arange(1, middle + 1, device=counts.device)
    half = torch.where(counts[middle:] + counts[:middle].flip(0) > 0, sides, 0).amax().clamp(min=1)
    reach = sides[groups // 2 - 1 :]
    if not torch.compiler.is_compiling():  # the number of candidates depends on the data
        reach = reach[: max(1, int(half) + 1 - groups // 2)]
    parts = torch.split(reach, max(1, AT_ONCE // len(counts)))
    divergence = torch.cat([_divergences(counts.double(), half, i.unsqueeze(-1), groups) for i in parts])
    divergence = torch.where(reach <= half, divergence, torch.inf)
    first = torch.where(divergence == divergence.amin(), reach, middle).amin()
    best = torch.where(half < groups // 2, half, first)
    return torch.stack((middle - best, torch.minimum(middle + best + 1, middle + half)))


def _divergences(counts: Tensor, half: Tensor, i: Tensor, groups: int) -> Tensor:
    # KL(P || Q) for the i of each row of a column.
    middle = len(counts) // 2
    start, end = middle - i, torch.minimum(middle + i + 1, middle + half)
    place = torch.arange(len(counts), device=counts.device)
    if not torch.compiler.is_compiling():  # the widest range depends on the data
        place = place[int(start[-1]) : int(end[-1])]
    valid = (place >= start) & (place < end)
    running = torch.nn.functional.pad(counts.cumsum(-1), (1, 0))
    p, first = torch.where(valid, counts[place], 0.0), place[0]
    p = p.scatter_add(-1, start - first, running[start]).scatter_add(-1, end - 1 - first, running[-1] - running[end])
    run = ((end - start) // groups).clamp(min=1)
    bounds = (start + run * torch.arange(groups + 1, device=counts.device)).clamp(max=len(counts))
    used = torch.nn.functional.pad((p != 0).cumsum(-1), (1, 0)).gather(-1, (bounds - first).clamp(max=len(place))).diff()
    bounds[:, -1:] = end
    mean = torch.where(used > 0, running[bounds].diff().div(used, rounding_mode="floor"), 0.0)
    # Bins after the last run have mean 0.  For so few bins, float32 floors the quotients correctly.
    group = ((place - start) / run).long().clamp(0, groups)
    q = torch.where(valid, torch.nn.functional.pad(mean, (0, 1)).gather(-1, group), 0.0)
    ratio = _smoothed(p, end - start), _smoothed(q, end - start)
    total, kept = counts.sum(), q.sum(-1)  # smoothing does not change the sums
    divergence = torch.where(valid, ratio[0] * (ratio[0] / ratio[1]).log(), 0.0).sum(-1) / total + (kept / total).log()
    return torch.where(mean.any(-1), divergence, torch.inf)


def _smoothed(h: Tensor, size: Tensor) -> Tensor:
    # Rows of `size` bins, followed by zeros.
    used = h != 0
    nonempty = used.sum(-1, keepdim=True)
    return torch.where(used, h - SMOOTH * (size - nonempty) / nonempty, SMOOTH)
