"""equalize: the channels of a weight get equal ranges, at the cost of the weight behind it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from qfunc.corrections.equalization_graph import Link, capture_for_equalization, equalization_links, require_links
from qfunc.corrections.norm_weights import moments
from qfunc.corrections.range_balancing import balancing_factors
from qfunc.corrections.scalable_ops import Rows
from qfunc.errors import SpecError
from qfunc.ops.vocabulary import attribute, kind_of

_LEAST = 1e-30


def equalize(deviations: float | None = None) -> Callable[[nn.Module], fx.GraphModule]:
    """Return a transform of a float model: weights that one scale a tensor must hold lose less.

    For each pair of ops  w2 f(w1 x + b1)  and each channel i between them,

        s_i = sqrt(r1_i r2_i) / r2_i,   w1'_i = w1_i / s_i,   b1'_i = b1_i / s_i,   w2'_i = w2_i s_i,

    with r1_i and r2_i the largest |w| of channel i in the rows of w1 and in the columns of w2; after that both are
    sqrt(r1_i r2_i).  It is repeated over all pairs until no s differs from 1 by more than 1e-3.  The float model does not
    change, but for the rounding of each weight to its dtype.  Where a channel has no weights on one side, s = 1.
    Other than in the paper, where a BatchNorm tells the activations, s_i >= a_i / max_j a_j with a = |beta| + 3 |gamma|: no
    channel then reaches further than the furthest did.  One that is all but dead, with tiny weights and a bias, would
    else stretch the range of all others.

    A clip at c (ReLU6) does not commute with s, so it ends a pair.  With `deviations` d it does not, directly behind a
    BatchNorm: channels of  beta + d |gamma| <= c  are scaled by  s_i >= (beta_i + d |gamma_i|) / c,  so that no value within d
    deviations of its mean meets the clip, before or after; all others keep s = 1.  The clip stays, to be fused as before,
    and the float model changes only by values beyond.  `replace_relu6`, the paper's way, changes it in every clipped value.

    Pairs are convolutions, transposed convolutions and linear layers, of any groups, found by the graph: every reader of
    the first op is one of them, behind ops that commute with s alone (ReLU and its leaky relatives, pools, dropout, flattening,
    padding with zeros).  So several readers are equalized together, r2 their largest; a residual add is not passed.  Ranges are
    those of weights with their BatchNorms folded; gamma and beta are divided, so that BatchNorms stay,
    keep their statistics, and may train.  `channel_pairs` tells which pairs there are, and why others are none.

    Of use where weights have one scale a tensor: scales of output channels make up for the rows, not for the columns.

    Args:
        deviations: None, or how far above their means values are taken to lie: 3 for all but 0.135 % of normal ones.
    Returns:
        A function from a module, or what `qfunc.capture` made of it, to a captured model, which `quantize` takes.
    Raises:
        SpecError: there is no pair, or every channel of all pairs meets its clip; the message says why.  Or
            `deviations` is not a finite number from 0.
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
            found, misses = equalization_links(network, clips=deviations is not None)
            wanted = "an op with weights whose readers are ops with weights, behind ReLUs, pools and the like"
            require_links(found, misses, "equalize", wanted)
            bounds = [_bounds(link, deviations) for link in found]
            _require_room(found, bounds, deviations)
            for link, by in zip(found, balancing_factors(found, bounds), strict=True):
                if bool((by != 1).any()):
                    link.scale(by)
            network.recompile()
            return network

    return transform


def _require_room(found: tuple[Link, ...], bounds: list[tuple[Tensor, Tensor]], deviations: float | None) -> None:
    # Raises where the bounds hold every channel of every pair at s = 1: the model would come back as it was.
    if not all(bool((least == most).all()) for least, most in bounds):
        return
    held = ", ".join(repr(str(link.producer.node)) for link in found[:3])
    raise SpecError(
        where="equalize",
        found=f"every channel meets its clip within {deviations} deviations (behind {held})",
        wanted="a channel that stays below it, which may be scaled",
        do="Lower deviations, or make the clips ReLUs by qfunc.replace_relu6().",
    )


def _bounds(link: Link, deviations: float | None) -> tuple[Tensor, Tensor]:
    # The least and the largest s of each channel; 0 and infinity where no BatchNorm tells its values.
    assert isinstance(link.producer, Rows)
    rows = link.producer
    least = torch.zeros(rows.channels, dtype=torch.float64, device=rows.op.stored.device)
    most = torch.full_like(least, torch.inf)
    if rows.norm is None:
        return least, most
    gamma, beta = moments(rows.model, rows.norm)
    reach = beta.abs() + 3 * gamma
    least = reach / reach.max().clamp_min(_LEAST)
    clips = [float(attribute(n, "max")) for end in link.ends for n in end.through if kind_of(n) == "clip"]
    if clips:
        assert deviations is not None
        share = (beta + deviations * gamma) / min(clips)
        least = torch.where(share <= 1, torch.maximum(least, share), 1.0)
        most = torch.where(share <= 1, most, 1.0)
    return least, most


__all__ = ["equalize"]
