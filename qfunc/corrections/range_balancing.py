"""The factors of channels after which both ranges of every pair are equal, within bounds."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from qfunc.corrections.equalization_graph import Link
from qfunc.corrections.scalable_ops import Columns, Rows

_TOLERANCE = 1e-3
_SWEEPS = 1000
_FAST = range(1, 100)
"""Sweeps that go one and a half times as far.

Along a chain of n pairs a factor common to a whole tensor spreads like heat, in the order of n^2 sweeps; over-relaxed
(Young 1954) it takes a few n.  The first sweep is plain, so that pairs that meet no others are done by it, and so are
those behind the hundredth: plain ones cannot run in circles.
"""
_LEAST = 1e-30
"""A range below this is one of zeros."""


def balancing_factors(found: tuple[Link, ...], bounds: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Return the s of each link, once nothing changes any more; `bounds` are the least and the largest."""
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
    """max |w| of each op over its window, [out, in / groups], as the factors so far leave it."""

    def __init__(self, found: tuple[Link, ...]) -> None:
        self.held: dict[fx.Node, Tensor] = {}
        self.groups: dict[fx.Node, int] = {}
        for link in found:
            assert isinstance(link.producer, Rows)
            self.held[link.producer.op.node] = _windows(link.producer.weight())
            for end in link.ends:
                self.held.setdefault(end.op.node, _windows(end.op.weight()))
                self.groups[end.op.node] = end.op.groups

    def step(self, link: Link) -> Tensor:
        """s of one pair, from r1 and r2."""
        assert isinstance(link.producer, Rows)
        first = self.held[link.producer.op.node].amax(1)
        second = torch.stack([self._columns(end).amax(1) for end in link.ends]).amax(0)
        return torch.where((first < _LEAST) | (second < _LEAST), 1.0, (first * second).sqrt() / second)

    def scale(self, link: Link, by: Tensor) -> None:
        """Return the ranges after the pair was scaled."""
        assert isinstance(link.producer, Rows)
        self.held[link.producer.op.node] /= by[:, None]
        for end in link.ends:
            held = self.held[end.op.node]
            held.view(self.groups[end.op.node], -1, held.shape[1]).mul_(end.each(by).view(self.groups[end.op.node], 1, -1))

    def _columns(self, end: Columns) -> Tensor:
        held = self.held[end.op.node]
        return held.view(self.groups[end.op.node], -1, held.shape[1]).amax(1).view(-1, end.repeat)


def _windows(weight: Tensor) -> Tensor:
    return (weight.abs().flatten(2).amax(2) if weight.ndim > 2 else weight.abs()).contiguous()


__all__ = ["balancing_factors"]
