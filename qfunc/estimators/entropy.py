"""TensorRT's entropy calibration: clip where the KL divergence is smallest."""

from __future__ import annotations

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.estimators.binning import Uniform
from qfunc.estimators.minmax import Range
from qfunc.estimators.sketch import Sketch, by_rows, clipped, empty, merged, nothing, of_magnitudes, updated
from qfunc.numerics.qparams import Affine, from_range
from qfunc.specs import Float, Int, Levels, Log, Scheme

START = 128
"""The smallest number of bins to keep."""

TIE = 1e-11
"""Divergences that differ by less are equal: the rounding of a sum of 4096 float64 terms below 40 is smaller."""

FIRST = 8
"""Number of candidates with the lowest bounds; only candidates that can beat them are evaluated."""

SLACK = 1e-9
"""Tolerance of the comparison with a bound: more than TIE and the rounding of a bound."""

AT_ONCE = 1 << 16
"""Number of terms evaluated together; they fit into the cache of one core."""

BINS_AT_ONCE = 1 << 14
"""Number of bins searched together: about 20 float64 tensors of this size, 3 MiB, for any number of blocks."""


def bin_count(instance: object, attribute: object, value: object) -> None:
    """Validate a number of bins: raise SpecError unless it is a power of two in [256, 65536]."""
    if type(value) is not int or not 256 <= value <= 1 << 16 or value & value - 1:
        where = f"{type(instance).__name__}.bins"
        raise SpecError(where=where, found=repr(value), wanted="a power of two in [256, 65536]", do="Give 4096 or another one.")


@frozen
class Entropy:
    """low = max(min(x), -c), high = min(max(x), c), c the edge of the histogram of |x| that loses the least information.

    With bins b_0 .. b_n-1 (b_0 replaced by b_1), for every i in [128, n]: P = b_0 .. b_i-1 with the counts of
    all later bins added to b_i-1; Q = b_0 .. b_i-1 cut into L equal groups, each non-zero bin replaced by the
    mean of its group's non-zero bins; L = 2^(bits-1) for signed codes, 2^bits for unsigned ones.  c is the upper
    edge of the last i with the smallest KL(P || Q) = sum p log(p/q), P and Q normalised.

    The bin width is the power of two at which bins/2 to bins of them reach max|x|.  (pytorch-quantization
    divides the first batch's max|x| by 2048, so its result depends on the order of the batches.)  An undefined
    divergence, of an empty Q, is infinite.

    Args:
        bins: The largest number of bins of |x|, a power of two; with 4096, at least TensorRT's 2048 are used.
    Raises:
        SpecError: bins is not a power of two in [256, 65536].
        CalibrationError: by `calibrate`, if a value is NaN or infinite.
    Source: NVIDIA pytorch-quantization, calib/histogram.py, _compute_amax_entropy; Migacz, "8-bit inference
        with TensorRT", GTC 2017.

    >>> x = torch.linspace(-0.999, 0.999, 9999).atanh() ** 3  # up to 54.9
    >>> estimator, scheme = Entropy(), Scheme()
    >>> estimator.range(estimator.update(estimator.init(scheme, x), x, scheme), scheme).high
    tensor(19.9375)
    """

    bins: int = field(default=4096, validator=bin_count)

    def init(self, scheme: Scheme, like: Tensor) -> Sketch:
        """Return the empty state: the identity of merge."""
        return empty(scheme, like)

    def update(self, state: Sketch, x: Tensor, scheme: Scheme) -> Sketch:
        """Return the statistics after x; an empty x changes nothing."""
        return updated(state, x, scheme, Uniform(self.bins))

    def merge(self, a: Sketch, b: Sketch) -> Sketch:
        """Return the statistics of the data of a and b."""
        return merged(a, b, Uniform(self.bins))

    def range(self, state: Sketch, scheme: Scheme) -> Range:
        """Return the range between the clipping bounds, in float32."""
        if nothing(state):
            return Range(state.low, state.high)
        bound = by_rows(state, max(1, BINS_AT_ONCE // self.bins), lambda part: self._bound(part, _groups(scheme)))
        return clipped(state, -bound, bound)

    def _bound(self, state: Sketch, groups: int) -> Tensor:
        edges, counts = of_magnitudes(state, Uniform(self.bins))
        return edges.gather(-1, least_divergent(counts, groups).unsqueeze(-1)).squeeze(-1)

    def finalize(self, state: Sketch, scheme: Scheme) -> Affine:
        """Return the qparams of the range."""
        return from_range(*self.range(state, scheme), scheme)


def least_divergent(counts: Tensor, groups: int) -> Tensor:
    """Return the number of bins to keep, at most up to the last non-empty one; all of those if there are at most 128.

    >>> least_divergent(torch.tensor([100] * 200 + [1] * 100), 128)
    tensor(300)
    """
    places = torch.arange(counts.shape[-1], device=counts.device)
    used = torch.where(counts > 0, places, 0).amax(-1) + 1
    if groups >= counts.shape[-1]:
        return used  # every bin is its own group: without clipping no information is lost
    kept = places[START - 1 :] + 1
    if not torch.compiler.is_compiling():  # the number of candidates depends on the data
        # The divergence is infinite if the last bin, which takes the clipped counts, is empty.
        kept = kept[counts.reshape(-1, counts.shape[-1])[:, START - 1 :].any(0)]
        if not len(kept):
            return used
        kept = kept[_can_be_best(counts, groups, kept, used.unsqueeze(-1))]
    divergence = divergences(counts, groups, kept)
    divergence = torch.where(kept <= used.unsqueeze(-1), divergence, torch.inf)
    best = divergence <= divergence.amin(-1, keepdim=True) + TIE
    return torch.where(used <= START, used, torch.where(best, kept, 0).amax(-1))


def divergences(counts: Tensor, groups: int, kept: Tensor) -> Tensor:
    """Return KL(P || Q) in float64 for each i of `kept`, in O(groups) operations per i: [*shape, len(kept)].

    With P's total T, Q's total C_i, group sums S_g and their numbers of non-zero bins Z_g:
    T KL = sum_j p_j log p_j - sum_g S_g log(S_g / Z_g) - (T - C_i) log q_i-1 - T log(T / C_i).
    """
    bins = _bins(counts)
    total = bins.sum(-1, keepdim=True)
    mass, nonzero, entropy = (_running(t) for t in (bins, (bins > 0).double(), torch.special.xlogy(bins, bins)))
    parts: list[Tensor] = []
    rows = 1 if torch.compiler.is_compiling() else total.numel()
    for i in torch.split(kept, max(1, AT_ONCE // (groups * rows))):
        bounds = (torch.arange(groups + 1, device=bins.device) * i.unsqueeze(-1) + groups - 1) // groups
        sums, sizes = mass[..., bounds].diff(), nonzero[..., bounds].diff()
        inside, last, beyond = mass[..., i], bins[..., i - 1], total - mass[..., i]
        # A mean of non-zero counts is at least 1.
        cross = torch.linalg.vecdot(sums, (sums / sizes.clamp(min=1)).clamp_(min=1).log_())
        # The group of bin i - 1: Q has the group's mean there if that bin is not empty, else 0.
        group = ((i - 1) * groups // i).unsqueeze(-1).expand(*sums.shape[:-1], 1)
        mean = (sums.gather(-1, group) / sizes.gather(-1, group).clamp(min=1)).squeeze(-1)
        clipping = torch.special.xlogy(beyond, torch.where(last > 0, mean, 0.0))
        value = entropy[..., i - 1] + torch.special.xlogy(last + beyond, last + beyond) - cross - clipping
        value = value / total - torch.log(total) + torch.log(inside)
        parts.append(torch.where((inside > 0) & value.isfinite(), value, torch.inf))
    return torch.cat(parts, -1)


def _can_be_best(counts: Tensor, groups: int, kept: Tensor, used: Tensor) -> Tensor:
    # True for each i of `kept` that can be the best of some block.  Merging all bins but i - 1 into one gives a lower
    # bound, d(a || b) = a log(a/b) + (1 - a) log((1 - a)/(1 - b)), with the shares a and b of bin i - 1 in P and Q.
    bins = _bins(counts)
    mass, nonzero = _running(bins), _running((bins > 0).double())
    group = (kept - 1) * groups // kept
    start, end = (group * kept + groups - 1) // groups, ((group + 1) * kept + groups - 1) // groups
    last, inside, total = bins[..., kept - 1], mass[..., kept], mass[..., -1:]
    mean = (mass[..., end] - mass[..., start]) / (nonzero[..., end] - nonzero[..., start]).clamp(min=1)
    a, b = (last + total - inside) / total, torch.where(last > 0, mean, 0.0) / inside
    least = torch.special.xlogy(a, a / b) + torch.special.xlogy(1 - a, (1 - a) / (1 - b).clamp(min=1e-300))
    least = torch.where((inside > 0) & (b > 0) & (kept <= used), least, torch.inf)
    first = torch.unique(least.topk(min(FIRST, len(kept)), largest=False).indices)
    best = torch.where(kept[first] <= used, divergences(counts, groups, kept[first]), torch.inf).amin(-1, keepdim=True)
    return (~(least > best + SLACK)).reshape(-1, len(kept)).any(0)


def _bins(counts: Tensor) -> Tensor:
    return torch.cat((counts[..., 1:2], counts[..., 1:]), -1).double()


def _running(values: Tensor) -> Tensor:
    return torch.nn.functional.pad(values.cumsum(-1), (1, 0))


def _groups(scheme: Scheme) -> int:
    match scheme.format:
        case Int(bits=bits, signed=signed):
            return 1 << min(bits - signed, 16)
        case Float(exponent=exponent, mantissa=mantissa):
            return 1 << min(exponent + mantissa, 16)
        case Log(magnitude_bits=bits):
            return 1 << bits
        case Levels(values=values):
            return max(1, len(values) // 2)
