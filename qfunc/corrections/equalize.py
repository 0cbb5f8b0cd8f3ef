"""equalize: balance the ranges of channels between the weights of consecutive ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from qfunc._transform import Transform
from qfunc.corrections.equalization_graph import Link, capture_for_equalization, equalization_links, require_links
from qfunc.corrections.scalable_ops import Columns, Rows, moments
from qfunc.errors import SpecError
from qfunc.ops.node import attribute, kind_of

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


def equalize(deviations: float | None = None) -> Callable[[nn.Module], fx.GraphModule]:
    """Return a transform of a float model that equalizes the ranges of channels, for weights with per-tensor scales.

    For each pair of ops  w2 f(w1 x + b1)  and each channel i between them,

        s_i = sqrt(r1_i r2_i) / r2_i,   w1'_i = w1_i / s_i,   b1'_i = b1_i / s_i,   w2'_i = w2_i s_i,

    with r1_i and r2_i the largest |w| of channel i in the rows of w1 and in the columns of w2; afterwards both are
    sqrt(r1_i r2_i).  This is repeated over all pairs until no s differs from 1 by more than 1e-3.  The float model does
    not change, except for the rounding of each weight to its dtype.  If a channel has no weights on one side, s = 1.
    Unlike the paper, if the first op has a BatchNorm, s_i >= c_i / max_j c_j with c = max(0, |beta| - 3 |gamma|), the part
    of a channel that does not depend on its input: none exceeds the largest one before.  Otherwise a nearly dead channel,
    with tiny weights and a bias, would widen the range of all others.  A channel with |beta| <= 3 |gamma| is not bounded.

    A clip at c (ReLU6) does not commute with s, so it ends a pair.  With `deviations` d, a clip directly after a BatchNorm
    does not end it: channels with  beta + d |gamma| <= c  are scaled by  s_i >= (beta_i + d |gamma_i|) / c,  so that values
    within d deviations of their mean do not reach the clip, before or after; other channels keep s = 1.  The clip is kept
    and can be fused as before, and the float model changes only for values beyond.  `replace_relu6`, the paper's method,
    changes every clipped value.

    Pairs are convolutions, transposed convolutions and linear layers, with any groups, found in the graph: every reader of
    the first op is one of them, with only ops that commute with s between (ReLU, leaky ReLU and PReLU, pools, dropout,
    flattening, padding with zeros).  Several readers are equalized together, with r2 their largest range; a residual add
    ends a pair.  Ranges are taken from weights with their BatchNorms folded; gamma and beta are divided, so that BatchNorms
    keep their statistics and can train.  `equalization_pairs` returns the pairs, and the reasons why other ops form none.

    Use it for weights with per-tensor scales.  Scales per output channel already adapt to the rows, but not to the columns.

    Args:
        deviations: None, or the number of deviations above the mean within which values are assumed to be; 3 includes all
            but 0.135 % of normal values.
    Returns:
        A function from a module, or from the result of `qfunc.capture`, to a captured model for `quantize`.
    Raises:
        SpecError: there is no pair, or every channel of all pairs reaches its clip; the message gives the reasons.  Or
            `deviations` is not a finite number of at least 0.
        CalibrationError: the model is quantized.
    Source: Nagel et al., arXiv:1906.04721, section 4.1, equations 7 to 11.

    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False)).eval()
    >>> _ = net[0].weight.data.copy_(torch.tensor([[8.0, 0.0], [0.0, 0.5]])), net[2].weight.data.fill_(2.0)
    >>> equal = equalize()(net)
    >>> equal.get_parameter("0.weight").data, equal.get_parameter("2.weight").data
    (tensor([[4., 0.],
            [0., 1.]]), tensor([[4., 1.]]))
    """

    number = isinstance(deviations, int | float) and not isinstance(deviations, bool)
    if deviations is not None and not (number and math.isfinite(deviations) and deviations >= 0):
        do = "Write qfunc.equalize(deviations=3.0), or qfunc.equalize()."
        raise SpecError(where="equalize, deviations", found=repr(deviations), wanted="a finite number from 0, or None", do=do)

    def transform(model: Any) -> fx.GraphModule:
        with torch.inference_mode(False), torch.no_grad():
            network = capture_for_equalization(model, "equalize")
            links, misses = equalization_links(network, clips=deviations is not None)
            wanted = "an op with weights, read only by ops with weights, directly or through ReLUs, pools and the like"
            require_links(links, misses, "equalize", wanted)
            bounds = [_bounds(link, deviations) for link in links]
            _require_room(links, bounds, deviations)
            for link, by in zip(links, _balancing_factors(links, bounds), strict=True):
                if bool((by != 1).any()):
                    link.scale(by)
            network.recompile()
            return network

    return Transform(equalize, {"deviations": deviations}, transform)


def _require_room(found: tuple[Link, ...], bounds: list[tuple[Tensor, Tensor]], deviations: float | None) -> None:
    # Raise if the bounds fix every channel of every pair at s = 1, so that the model would not change.
    if not all(bool((least == most).all()) for least, most in bounds):
        return
    clipped = ", ".join(repr(str(link.producer.node)) for link in found[:3])
    raise SpecError(
        where="equalize",
        found=f"every channel reaches its clip within {deviations} deviations (after {clipped})",
        wanted="a channel that stays below its clip, so that it can be scaled",
        do="Lower deviations, or replace the clips by ReLUs with qfunc.corrections.replace_relu6().",
    )


def _bounds(link: Link, deviations: float | None) -> tuple[Tensor, Tensor]:
    # The smallest and the largest s of each channel; 0 and infinity without a BatchNorm.
    assert isinstance(link.producer, Rows)
    rows = link.producer
    least = torch.zeros(rows.channels, dtype=torch.float64, device=rows.op.stored.device)
    most = torch.full_like(least, torch.inf)
    if rows.norm is None:
        return least, most
    gamma, beta = moments(rows.model, rows.norm)
    constant = (beta.abs() - 3 * gamma).clamp_min(0)
    least = constant / constant.max().clamp_min(_LEAST)
    clips = [float(attribute(n, "max")) for end in link.ends for n in end.through if kind_of(n) == "clip"]
    if clips:
        assert deviations is not None
        share = (beta + deviations * gamma) / min(clips)
        least = torch.where(share <= 1, torch.maximum(least, share), 1.0)
        most = torch.where(share <= 1, most, 1.0)
    return least, most


def _balancing_factors(found: tuple[Link, ...], bounds: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
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
