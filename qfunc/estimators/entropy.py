"""Clipping where the information lost is smallest: TensorRT's calibration."""

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
"""The fewest bins that are kept."""

TIE = 1e-11
"""Divergences so near to each other are equal: sums of 4096 float64 terms below 40 differ by less."""

FIRST = 8
"""How many bounds give the divergence that the others must get below."""

SLACK = 1e-9
"""More than TIE and the rounding of a bound."""

AT_ONCE = 1 << 16
"""Terms evaluated together: what a core's cache holds."""

BINS_AT_ONCE = 1 << 14
"""Blocks are searched in groups of so many bins: some 20 tensors of so many float64, 3 MiB, however many blocks there are."""


def bin_count(instance: object, attribute: object, value: object) -> None:
    """A validator: histograms have a power of two of bins."""
    if type(value) is not int or not 256 <= value <= 1 << 16 or value & value - 1:
        where = f"{type(instance).__name__}.bins"
        raise SpecError(where=where, found=repr(value), wanted="a power of two in [256, 65536]", do="Give 4096 or another one.")


@frozen
class Entropy:
    """low = max(min(x), -c), high = min(max(x), c), c the edge of the histogram of |x| that loses least information.

    Of bins b_0 .. b_n-1 (b_0 replaced by b_1), for every i in [128, n]: P = b_0 .. b_i-1 with all that lies
    beyond added to b_i-1; Q = b_0 .. b_i-1 cut into L equal groups, each non-zero bin replaced by the mean of
    its group's non-zero bins; L = 2^(bits-1) for signed codes, 2^bits for unsigned ones.  c is the upper edge
    of the last i with the smallest KL(P || Q) = sum p log(p/q), P and Q normalised.

    The bins' width is the power of two with which bins/2 to bins of them reach max|x| (pytorch-quantization
    cuts the first batch's max|x| into 2048, so that its result depends on the order of the batches).  A
    divergence that is not defined, of an empty Q, counts as infinite.

    Args:
        bins: The most bins of |x|, a power of two; 4096 keeps at least TensorRT's 2048 in use.
    Raises:
        SpecError: bins that are no power of two in [256, 65536].
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
        """Nothing seen: the identity of merge."""
        return empty(scheme, like)

    def update(self, state: Sketch, x: Tensor, scheme: Scheme) -> Sketch:
        """The statistics after x; an empty x changes nothing."""
        return updated(state, x, scheme, Uniform(self.bins))

    def merge(self, a: Sketch, b: Sketch) -> Sketch:
        """The statistics of a's data and b's."""
        return merged(a, b, Uniform(self.bins))

    def range(self, state: Sketch, scheme: Scheme) -> Range:
        """The range between the clipping bounds, in float32."""
        if nothing(state):
            return Range(state.low, state.high)
        bound = by_rows(state, max(1, BINS_AT_ONCE // self.bins), lambda part: self._bound(part, _groups(scheme)))
        return clipped(state, -bound, bound)

    def _bound(self, state: Sketch, groups: int) -> Tensor:
        edges, counts = of_magnitudes(state, Uniform(self.bins))
        return edges.gather(-1, least_divergent(counts, groups).unsqueeze(-1)).squeeze(-1)

    def finalize(self, state: Sketch, scheme: Scheme) -> Affine:
        """The qparams of the range."""
        return from_range(*self.range(state, scheme), scheme)


def least_divergent(counts: Tensor, groups: int) -> Tensor:
    """How many of the bins, up to the last that is not empty, to keep; all of them where there are at most 128.

    >>> least_divergent(torch.tensor([100] * 200 + [1] * 100), 128)
    tensor(300)
    """
    places = torch.arange(counts.shape[-1], device=counts.device)
    used = torch.where(counts > 0, places, 0).amax(-1) + 1
    if groups >= counts.shape[-1]:
        return used  # every bin is its own group, and nothing is lost without clipping
    kept = places[START - 1 :] + 1
    if not torch.compiler.is_compiling():  # which would not know how many they are
        # An empty last bin cannot hold what lies beyond: the divergence is infinite.
        kept = kept[counts.reshape(-1, counts.shape[-1])[:, START - 1 :].any(0)]
        if not len(kept):
            return used
        kept = kept[_promising(counts, groups, kept, used.unsqueeze(-1))]
    divergence = divergences(counts, groups, kept)
    divergence = torch.where(kept <= used.unsqueeze(-1), divergence, torch.inf)
    best = divergence <= divergence.amin(-1, keepdim=True) + TIE
    return torch.where(used <= START, used, torch.where(best, kept, 0).amax(-1))


def divergences(counts: Tensor, groups: int, kept: Tensor) -> Tensor:
    """KL(P || Q) in float64 for each i of `kept`, in O(groups) operations for each: [*shape, len(kept)].

    With P's total T, Q's total C_i, group sums S_g and their numbers of non-zero bins Z_g:
    T KL = sum_j p_j log p_j - sum_g S_g log(S_g / Z_g) - (T - C_i) log q_i-1 - T log(T / C_i).
    """
    bins = _bins(counts)
    total = bins.sum(-1, keepdim=True)
    mass, held, entropy = (_running(t) for t in (bins, (bins > 0).double(), torch.special.xlogy(bins, bins)))
    found: list[Tensor] = []
    rows = 1 if torch.compiler.is_compiling() else total.numel()
    for i in torch.split(kept, max(1, AT_ONCE // (groups * rows))):
        bounds = (torch.arange(groups + 1, device=bins.device) * i.unsqueeze(-1) + groups - 1) // groups
        sums, sizes = mass[..., bounds].diff(), held[..., bounds].diff()
        inside, last, beyond = mass[..., i], bins[..., i - 1], total - mass[..., i]
        # A mean of whole numbers that are not 0 is at least 1.
        own = torch.linalg.vecdot(sums, (sums / sizes.clamp(min=1)).clamp_(min=1).log_())
        # The group of bin i - 1: its mean stands where that bin is not empty, else 0.
        group = ((i - 1) * groups // i).unsqueeze(-1).expand(*sums.shape[:-1], 1)
        mean = (sums.gather(-1, group) / sizes.gather(-1, group).clamp(min=1)).squeeze(-1)
        lost = torch.special.xlogy(beyond, torch.where(last > 0, mean, 0.0))
        value = entropy[..., i - 1] + torch.special.xlogy(last + beyond, last + beyond) - own - lost
        value = value / total - torch.log(total) + torch.log(inside)
        found.append(torch.where((inside > 0) & value.isfinite(), value, torch.inf))
    return torch.cat(found, -1)


def _promising(counts: Tensor, groups: int, kept: Tensor, used: Tensor) -> Tensor:
    # Which i of `kept` can be the best of any block: merging all bins but i - 1 into one lowers a divergence, to
    # d(a || b) = a log(a/b) + (1 - a) log((1 - a)/(1 - b)) of the shares a and b of bin i - 1 in P and Q.
    bins = _bins(counts)
    mass, held = _running(bins), _running((bins > 0).double())
    group = (kept - 1) * groups // kept
    start, end = (group * kept + groups - 1) // groups, ((group + 1) * kept + groups - 1) // groups
    last, inside, total = bins[..., kept - 1], mass[..., kept], mass[..., -1:]
    mean = (mass[..., end] - mass[..., start]) / (held[..., end] - held[..., start]).clamp(min=1)
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
