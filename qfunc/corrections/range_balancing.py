"""Compute factors per channel that make both ranges of every pair equal, within bounds."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from qfunc.corrections.equalization_graph import Link
from qfunc.corrections.scalable_ops import Columns, Rows

_TOLERANCE = 1e-3
_SWEEPS = 1000
_FAST = range(1, 100)
"""Sweeps with over-relaxation by a factor of 1.5.

Along a chain of n pairs, a factor common to a whole tensor spreads by diffusion, in about n^2 sweeps; with over-relaxation
(Young 1954) in a few n.  The first sweep is plain, so that it suffices for isolated pairs.  The sweeps after the hundredth
are plain, too, because plain sweeps cannot cycle.
"""
_LEAST = 1e-30
"""Ranges below this are those of zero weights."""


def balancing_factors(found: tuple[Link, ...], bounds: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Return the s of each link after convergence; `bounds` are the smallest and the largest s."""
    ranges = _Ranges(found)
    totals = [torch.ones_like(least) for least, _ in bounds]
    for sweep in range(_SWEEPS):
        changed = False
        for link, total, (least, most) in zip(found, totals, bounds, strict=True):
            step = ranges.step(link)
            by = torch.clamp(step**1.5 if sweep in _FAST else step, least / total, most / total)
            if bool(((by - 1).abs() > _TOLERANCE).any()):
                changed = True
                ranges.scale(link, by)
                total.mul_(by)
        if not changed:
            break
    return totals


class _Ranges:
    """max |w| of each op over its window, [out, in / groups], with the current factors applied."""

    def __init__(self, found: tuple[Link, ...]) -> None:
        self.maxima: dict[fx.Node, Tensor] = {}
        self.groups: dict[fx.Node, int] = {}
        for link in found:
            assert isinstance(link.producer, Rows)
            self.maxima[link.producer.op.node] = _windows(link.producer.weight())
            for end in link.ends:
                self.maxima.setdefault(end.op.node, _windows(end.weight()))
                self.groups[end.op.node] = end.op.groups

    def step(self, link: Link) -> Tensor:
        """Return s of one pair, from r1 and r2."""
        assert isinstance(link.producer, Rows)
        first = self.maxima[link.producer.op.node].amax(1)
        second = torch.stack([self._columns(end).amax(1) for end in link.ends]).amax(0)
        return torch.where((first < _LEAST) | (second < _LEAST), 1.0, (first * second).sqrt() / second)

    def scale(self, link: Link, by: Tensor) -> None:
        """Apply the factors of one pair to the ranges."""
        assert isinstance(link.producer, Rows)
        self.maxima[link.producer.op.node] /= by[:, None]
        for end in link.ends:
            ranges = self.maxima[end.op.node]
            ranges.view(self.groups[end.op.node], -1, ranges.shape[1]).mul_(end.each(by).view(self.groups[end.op.node], 1, -1))

    def _columns(self, end: Columns) -> Tensor:
        ranges = self.maxima[end.op.node]
        return ranges.view(self.groups[end.op.node], -1, ranges.shape[1]).amax(1).view(-1, end.repeat)


def _windows(weight: Tensor) -> Tensor:
    return (weight.abs().flatten(2).amax(2) if weight.ndim > 2 else weight.abs()).contiguous()


__all__ = ["balancing_factors"]
