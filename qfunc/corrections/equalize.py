"""equalize: the channels of a weight get equal ranges, at the cost of the weight behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from qfunc.corrections.absorb import moments
from qfunc.corrections.ends import Rows
from qfunc.corrections.links import Link, captured, links, require_links

_TOLERANCE = 1e-4
_SWEEPS = 1000
_LEAST = 1e-30
"""A range below this is one of zeros."""


def equalize() -> Callable[[nn.Module], fx.GraphModule]:
    """A transform of a float model: weights that one scale a tensor must hold lose less.

    For each pair of ops  w2 f(w1 x + b1)  and each channel i between them,

        s_i = sqrt(r1_i r2_i) / r2_i,   w1'_i = w1_i / s_i,   b1'_i = b1_i / s_i,   w2'_i = w2_i s_i,

    with r1_i and r2_i the largest |w| of channel i in the rows of w1 and in the columns of w2; after that both are
    sqrt(r1_i r2_i).  It is repeated over all pairs until no s differs from 1 by more than 1e-4.  The float model does not
    change, but for the rounding of each weight to its dtype.  Where a channel has no weights on one side, s = 1.
    Other than in the paper, where a BatchNorm tells the activations, s_i >= a_i / max_j a_j with a = |beta| + 3 |gamma|: no
    channel then reaches further than the furthest did.  One that is all but dead, with tiny weights and a bias, would
    else stretch the range of all others.

    Pairs are convolutions, transposed convolutions and linear layers, of any groups, found by the graph: every reader of
    the first op is one of them, behind ops that commute with s alone (ReLU and its leaky relatives, pools, dropout, flattening,
    padding with zeros).  So several readers are equalized together, r2 their largest; a residual add is not passed.  Ranges are
    those of weights with their BatchNorms folded; gamma and beta are divided, so that BatchNorms stay,
    keep their statistics, and may train.  `channel_pairs` tells which pairs there are, and why others are none.

    Of use where weights have one scale a tensor: scales of output channels make up for the rows, not for the columns.

    Returns:
        A function from a module, or what `qfunc.capture` made of it, to a captured model, which `quantize` takes.
    Raises:
        SpecError: there is no pair; the message says why.
        CalibrationError: the model is quantized.
    Source: Nagel et al., arXiv:1906.04721, section 4.1, equations 7 to 11.

    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False)).eval()
    >>> _ = net[0].weight.data.copy_(torch.tensor([[8.0, 0.0], [0.0, 0.5]])), net[2].weight.data.fill_(2.0)
    >>> equal = equalize()(net)
    >>> equal.get_parameter("0.weight").data, equal.get_parameter("2.weight").data
    (tensor([[4., 0.],
            [0., 1.]]), tensor([[4., 1.]]))
    """

    def transform(model: Any) -> fx.GraphModule:
        with torch.inference_mode(False), torch.no_grad():
            network = captured(model, "equalize")
            found, misses = links(network)
            wanted = "an op with weights whose readers are ops with weights, behind ReLUs, pools and the like"
            require_links(found, misses, "equalize", wanted)
            for link, by in zip(found, factors(found), strict=True):
                if bool((by != 1).any()):
                    link.scale(by)
            network.recompile()
            return network

    return transform


def factors(found: tuple[Link, ...]) -> list[Tensor]:
    """The s of each link, once nothing changes any more."""
    ranges = _Ranges(found)
    least = [_least(link) for link in found]
    totals = [torch.ones(link.producer.channels, dtype=torch.float64, device=ranges.device) for link in found]
    for _ in range(_SWEEPS):
        changed = False
        for link, total, bound in zip(found, totals, least, strict=True):
            by = torch.maximum(ranges.step(link), bound / total)
            if bool(((by - 1).abs() > _TOLERANCE).any()):
                changed = True
                ranges.scale(link, by)
                total.mul_(by)
        if not changed:
            break
    return totals


def _least(link: Link) -> Tensor:
    # The least s of each channel, by which its activations reach those of the largest; 0 where no BatchNorm tells them.
    rows = _rows(link)
    if rows.norm is None:
        return torch.zeros(rows.channels, dtype=torch.float64, device=rows.op.stored.device)
    gamma, beta = moments(rows.model, rows.norm)
    reach = beta.abs() + 3 * gamma
    return reach / reach.max().clamp_min(_LEAST)


def _rows(link: Link) -> Rows:
    assert isinstance(link.producer, Rows)
    return link.producer


class _Ranges:
    """max |w| of each op over its window, [out, in / groups], as the factors so far leave it."""

    def __init__(self, found: tuple[Link, ...]) -> None:
        self.held: dict[fx.Node, Tensor] = {}
        for link in found:
            rows = _rows(link)
            self.held[rows.op.node] = _windows(rows.weight())
            for end in link.ends:
                self.held.setdefault(end.op.node, _windows(end.op.weight()))
        self.device = next(iter(self.held.values())).device

    def rows(self, link: Link) -> Tensor:
        """r1."""
        return self.held[_rows(link).op.node].amax(1)

    def columns(self, link: Link) -> Tensor:
        """r2."""
        return torch.stack([end.of(self.held[end.op.node]) for end in link.ends]).amax(0)

    def step(self, link: Link) -> Tensor:
        """s of one pair."""
        first, second = self.rows(link), self.columns(link)
        return torch.where((first < _LEAST) | (second < _LEAST), 1.0, (first * second).sqrt() / second)

    def scale(self, link: Link, by: Tensor) -> None:
        """The ranges after the pair was scaled."""
        self.held[_rows(link).op.node] /= by[:, None]
        for end in link.ends:
            held, groups = self.held[end.op.node], end.op.groups
            held.view(groups, -1, held.shape[1]).mul_(end.each(by).view(groups, 1, -1))


def _windows(weight: Tensor) -> Tensor:
    return weight.abs().flatten(2).amax(2) if weight.ndim > 2 else weight.abs()


__all__ = ["equalize", "factors"]
