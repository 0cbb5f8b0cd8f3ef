"""Sketch of the data for quantiles, errors and entropies: all values while there are few, then counts in bins."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from qfunc.estimators.binning import PATTERNS, Bins
from qfunc.estimators.minmax import Range
from qfunc.numerics.qparams import blocks, qparams_shape
from qfunc.specs import Scheme

TOLERANCE = 1e-6
"""Tolerance of a rank, because 0.99999 * 100000 rounds to slightly more than 99999."""

MAX_VALUES = 8192
"""Blocks of up to this many elements are stored as values: no more memory than their bins would need."""

PART = 1 << 18
"""Number of elements counted at a time; they fit into the cache of one core."""


class Sketch(NamedTuple):
    """Exact extremes, and either all values so far or integer counts: an ordered monoid, exact in every part.

    low, high: float32, in the shape of the qparams; +inf and -inf before any data, NaN after a NaN.
    values: float32 [*shape, n], in order of arrival; n = 0 once there are counts.
    counts: int64 [*shape, 2, bins], negative and positive; 0 bins while there are values.

    The number of elements of a block follows from shapes, so the choice between values and counts never depends on
    the data.  The size of both is bounded, whatever the number of batches.
    """

    low: Tensor
    high: Tensor
    values: Tensor
    counts: Tensor


def empty(scheme: Scheme, like: Tensor) -> Sketch:
    """Return the sketch of no data: the identity of `merged`."""
    shape = qparams_shape(scheme, tuple(like.shape))
    full = torch.full(shape, torch.inf, dtype=torch.float32, device=like.device)
    return Sketch(full, -full, full.new_empty((*shape, 0)), torch.empty((*shape, 2, 0), dtype=torch.int64, device=like.device))


def updated(state: Sketch, x: Tensor, scheme: Scheme, bins: Bins) -> Sketch:
    """Return the sketch after x; an empty x changes nothing."""
    if x.numel() == 0:
        return state
    split, axes = blocks(x.detach().float(), scheme)
    few = state.counts.shape[-1] == 0 and state.values.shape[-1] + x.numel() // state.low.numel() <= MAX_VALUES
    if few:
        rows = split.movedim(axes, tuple(range(-len(axes), 0))) if len(axes) < split.ndim else split
        rows = rows.reshape((*state.low.shape, -1))
        low, high = torch.aminmax(rows, dim=-1)
        values = torch.cat((state.values, rows), -1)
        return Sketch(torch.minimum(state.low, low), torch.maximum(state.high, high), values, state.counts)
    whole = len(axes) == split.ndim
    low, high = torch.aminmax(split) if whole else (split.amin(axes), split.amax(axes))
    low, high = torch.minimum(state.low, low), torch.maximum(state.high, high)
    level = bins.level(magnitude(low, high))
    counts = _counted(split, level, bins)
    if not nothing(state):
        counts = counts.add_(_in_bins(state, level, bins))
    return Sketch(low, high, state.values[..., :0], counts)


def merged(a: Sketch, b: Sketch, bins: Bins) -> Sketch:
    """Return the sketch of a's data followed by b's, bit for bit equal to one pass over both."""
    low, high = torch.minimum(a.low, b.low), torch.maximum(a.high, b.high)
    few = a.counts.shape[-1] == b.counts.shape[-1] == 0 and a.values.shape[-1] + b.values.shape[-1] <= MAX_VALUES
    if few:
        return Sketch(low, high, torch.cat((a.values, b.values), -1), a.counts)
    counts = counted(a, low, high, bins) + counted(b, low, high, bins)
    return Sketch(low, high, a.values[..., :0], counts)


def counted(state: Sketch, low: Tensor, high: Tensor, bins: Bins) -> Tensor:
    """Return the counts of all data in the bins of the range [low, high]: int64 [*shape, 2, size]."""
    return _in_bins(state, bins.level(magnitude(low, high)), bins)


def _in_bins(state: Sketch, level: Tensor, bins: Bins) -> Tensor:
    if state.counts.shape[-1]:
        octaves = level - bins.level(magnitude(state.low, state.high))
        if not torch.compiler.is_compiling() and not bool(octaves.any()):
            return state.counts
        target = bins.moved(octaves).unsqueeze(-2).expand_as(state.counts)
        return torch.zeros_like(state.counts).scatter_add_(-1, target, state.counts)
    shape, size = state.low.shape, bins.size
    index = bins.find(state.values, level.unsqueeze(-1)).long().add_(size)
    counts = torch.zeros((*shape, 2 * size), dtype=torch.int64, device=state.low.device)
    return _by_sign(counts.scatter_add_(-1, index, torch.ones_like(index)))


def magnitude(low: Tensor, high: Tensor) -> Tensor:
    """Return the largest magnitude: 0 before any data, NaN after a NaN."""
    return torch.maximum(-low, high).clamp(min=0)


def of_values(state: Sketch, bins: Bins) -> tuple[Tensor, Tensor]:
    """Return (edges, counts) of the bins in ascending order: float64 [*shape, 2 size + 1], int64 [*shape, 2 size]."""
    edges = bins.edges(bins.level(magnitude(state.low, state.high)))
    negative, positive = counted(state, state.low, state.high, bins).unbind(-2)
    return torch.cat((-edges.flip(-1)[..., :-1], edges), -1), torch.cat((negative.flip(-1), positive), -1)


def of_magnitudes(state: Sketch, bins: Bins) -> tuple[Tensor, Tensor]:
    """Return (edges, counts) of the bins of |x|: float64 [*shape, size + 1], int64 [*shape, size]."""
    edges = bins.edges(bins.level(magnitude(state.low, state.high)))
    return edges, counted(state, state.low, state.high, bins).sum(-2)


def by_rows(state: Sketch, rows: int, function: Callable[[Sketch], Tensor]) -> Tensor:
    """Apply a function to `rows` blocks at a time: function(part) has the shape of part.low, the result that of state.low."""
    if torch.compiler.is_compiling():  # otherwise the trace would grow with the number of parts
        return function(state)
    blocks = (t.reshape(state.low.numel(), *t.shape[state.low.ndim :]) for t in state)
    parts = zip(*(torch.split(t, rows) for t in blocks), strict=True)
    return torch.cat([function(Sketch(*part)) for part in parts]).view(state.low.shape)


def _counted(split: Tensor, level: Tensor, bins: Bins) -> Tensor:
    # Count x, viewed by `blocks`, in parts that fit into the cache: allocating takes longer than counting.
    compiling = torch.compiler.is_compiling()
    if level.numel() == 1:
        flat = split.reshape(-1)
        if bins.coarse:
            # Count the bit patterns, then sum them into the bins.
            length = len(flat) if compiling else min(len(flat), 2 * PART)
            buffer = torch.empty(length, dtype=torch.int32, device=flat.device)
            tallies = (_by_pattern(part, buffer) for part in torch.split(flat, length))
            return bins.of_patterns(_total(tallies).view(2, PATTERNS), level.flatten()).flip(0).view(*level.shape, 2, bins.size)
        parts = torch.split(flat, len(flat) if compiling else PART)
        return _by_sign(_total(_in_windows(part, level.flatten(), bins) for part in parts).view(*level.shape, -1))
    aligned = level.view([n for length in level.shape for n in (length, 1)])
    if split.numel() <= PART or compiling:
        return _by_sign(_in_windows(split, aligned, bins).view(*level.shape, -1))
    axis = max(range(level.ndim), key=lambda axis: level.shape[axis])
    length = max(1, PART * level.shape[axis] // split.numel())
    pairs = zip(torch.split(split, length, 2 * axis), torch.split(level, length, axis), strict=True)
    return torch.cat([_counted(*pair, bins) for pair in pairs], axis)


def _total(counts: Iterable[Tensor]) -> Tensor:
    return functools.reduce(Tensor.add_, counts)


def _by_pattern(x: Tensor, buffer: Tensor) -> Tensor:
    # Negative numbers have the upper half of the patterns.
    patterns = torch.bitwise_right_shift(x.view(torch.int32), 16, out=buffer[: len(x)])
    return _tally(patterns.bitwise_and_(2 * PATTERNS - 1), 2 * PATTERNS)


def _in_windows(x: Tensor, level: Tensor, bins: Bins) -> Tensor:
    # Counts of every block's bins in ascending order; levels broadcast against x.
    groups, size = level.numel(), bins.size
    x = x.contiguous()
    wide = groups * 2 * size >= 1 << 31
    first = torch.arange(groups, dtype=torch.int64 if wide else torch.int32, device=x.device).mul_(2 * size).add_(size)
    index = bins.find(x, level)
    index = index + first.view(level.shape) if wide else index.add_(first.view(level.shape))
    return _tally(index, groups * 2 * size)


def _by_sign(line: Tensor) -> Tensor:
    negative, positive = line.view(*line.shape[:-1], 2, line.shape[-1] // 2).unbind(-2)
    return torch.stack((negative.flip(-1), positive), -2)


def _tally(index: Tensor, size: int) -> Tensor:
    index = index.flatten()
    if torch.compiler.is_compiling():  # to the compiler, the shape of bincount depends on the data
        return torch.zeros(size, dtype=torch.int64, device=index.device).scatter_add_(
            0, index.long(), torch.ones_like(index).long()
        )
    return torch.bincount(index, minlength=size)


def nothing(state: Sketch) -> bool:
    """Return True if there was no data yet; this follows from shapes."""
    return state.values.shape[-1] == state.counts.shape[-1] == 0


def rank(share: float, n: int | Tensor) -> Tensor:
    """Return max(1, ceil(share n - TOLERANCE)).

    >>> int(rank(0.99999, 100000)), int(rank(0.5, 5))
    (99999, 3)
    """
    return torch.ceil(torch.as_tensor(n).double() * share - TOLERANCE).clamp(min=1)


def ranked(edges: Tensor, counts: Tensor, share: float) -> Tensor:
    """Return the ceil(share n)-th smallest of n binned values, in float64; the error is less than one bin.

    The j-th of the c values of a bin [a, b] is assumed to be a + (b - a)(j - 1/2)/c.
    """
    total = counts.cumsum(-1)
    target = rank(share, total[..., -1:])
    place = (total < target).sum(-1, keepdim=True).clamp(max=counts.shape[-1] - 1)
    count = counts.gather(-1, place)
    part = (target - 0.5 - (total.gather(-1, place) - count)) / count.clamp(min=1)
    low, high = edges.gather(-1, place), edges.gather(-1, place + 1)
    return (low + (high - low) * part).squeeze(-1)


def clipped(state: Sketch, low: Tensor, high: Tensor, *, widest: float = 1.0) -> Range:
    """Return [low, high] clamped to `widest` times the observed range; the observed range itself if it is not finite."""
    seen = state.low.isfinite() & state.high.isfinite()
    ends = state.low.minimum(widest * state.low), state.high.maximum(widest * state.high)
    low, high = low.float().maximum(ends[0]), high.float().minimum(ends[1])
    return Range(torch.where(seen, low, state.low), torch.where(seen, high, state.high))
