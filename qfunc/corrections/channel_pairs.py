"""equalization_pairs: the pairs of ops that `equalize` would scale, their imbalance, and the ops that it would not scale."""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen
from torch import nn

from qfunc.analysis.report_format import Section, fragment, page, table
from qfunc.corrections.equalization_graph import Link, NearMiss, capture_for_equalization, equalization_links
from qfunc.corrections.scalable_ops import Rows
from qfunc.graph.record import path_of
from qfunc.ops.node import kind_of

_HEAD = ("op", "through", "readers", "channels", "rows", "columns")


@frozen
class ChannelPair:
    """An op, and the ops that read it.

    `first` and `second` are the means over the channels of r_i / max_j r_j, for the rows of the op and the columns of its
    readers: the share of a per-tensor scale's range that a channel uses.  `through` are the kinds of ops between them.
    """

    op: str
    through: tuple[str, ...]
    readers: tuple[str, ...]
    channels: int
    first: float
    second: float


@frozen
class Pairs:
    """The pairs in graph order, and the ops that belong to no pair, with reasons."""

    rows: tuple[ChannelPair, ...]
    misses: tuple[NearMiss, ...]

    def __str__(self) -> str:
        """Return the pairs as a table, then the other ops."""
        return "\n".join((table(_HEAD, self._cells), *map(str, self.misses)))

    def _repr_html_(self) -> str:
        misses = tuple((m.op, m.at, m.why) for m in self.misses)
        sections = [Section("Pairs", _HEAD, tuple(self._cells)), Section("No pairs", ("op", "at", "reason"), misses)]
        return fragment(page("Channels that can be equalized", "", sections))

    @property
    def _cells(self) -> list[tuple[str, ...]]:
        return [(r.op, ", ".join(r.through), ", ".join(r.readers), str(r.channels), f"{r.first:.3f}", f"{r.second:.3f}")
                 for r in self.rows]  # fmt: skip


def equalization_pairs(model: nn.Module) -> Pairs:
    """Return the pairs of ops whose channels `equalize` scales, and the reasons why other ops form no pair.

    The share of a channel is its precision in section 4.1 of the paper: 1 if all ranges are equal.

    Raises:
        CalibrationError: the model is quantized.
    Source: Nagel et al., arXiv:1906.04721, equation 8.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU6(), nn.Conv2d(5, 2, 3))
    >>> pairs = equalization_pairs(net)
    >>> [(r.op, r.through, r.readers, r.channels) for r in pairs.rows]
    [('0', ('relu',), ('2',), 4)]
    >>> print(pairs.misses[0])
    '2', at '3': a clip at 6.0 does not scale with channels; replace_relu6() makes it a ReLU, equalize(deviations=3.0) keeps it
    """
    with torch.inference_mode(False), torch.no_grad():
        network = capture_for_equalization(model, "channel_pairs")
        links, misses = equalization_links(network)
        return Pairs(tuple(_row(network, link) for link in links), misses)


def _row(network: Any, link: Link) -> ChannelPair:
    assert isinstance(link.producer, Rows)
    first = link.producer.weight().flatten(1).abs().amax(1)
    second = torch.stack([end.ranges() for end in link.ends]).amax(0)
    shares = [float((r / r.max().clamp_min(1e-30)).mean()) for r in (first, second)]
    through = dict.fromkeys(kind_of(n) for end in link.ends for n in end.through)
    readers = tuple(path_of(network, end.op.node) for end in link.ends)
    return ChannelPair(path_of(network, link.producer.op.node), tuple(through), readers, len(first), *shares)
