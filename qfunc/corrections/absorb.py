"""absorb_high_bias: what is above zero in all but a few images becomes part of the next bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from qfunc.corrections.channel_scaling import keeps_constants
from qfunc.corrections.equalization_graph import Link, NearMiss, capture_for_equalization, equalization_links, require_links
from qfunc.corrections.norm_weights import moments, store_norm
from qfunc.corrections.scalable_ops import Rows
from qfunc.graph.record import path_of
from qfunc.ops.vocabulary import kind_of


def absorb_high_bias() -> Callable[[nn.Module], fx.GraphModule]:
    """Return a transform of a float model: activations whose ranges `equalize` made large get smaller ones.

    For each pair  w2 f(norm(x)) + b2  with f a ReLU or one of its leaky relatives, and each channel between,

        c = max(0, beta - 3 |gamma|),   beta' = beta - c,   b2' = b2 + w2 c,

    as f(y - c) = f(y) - c for y >= c.  The law holds approximately: if y is normal, of mean beta and deviation |gamma|, for all
    but 0.135 % of the values; exactly where all are at least c.  Pairs are those of `equalize` whose first op has a
    BatchNorm, and whose second reads no padding: zeros around an image would not shift with it.

    Returns:
        A function from a module, or what `qfunc.capture` or `equalize` made of it, to a captured model.
    Raises:
        SpecError: there is no pair; the message says why.
        CalibrationError: the model is quantized.
    Source: Nagel et al., arXiv:1906.04721, section 4.1.3, equations 12 to 15.

    >>> net = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.ReLU(), nn.Conv2d(1, 1, 1, bias=False)).eval()
    >>> _ = net[1].bias.data.fill_(5.0), net[3].weight.data.fill_(2.0)
    >>> absorbed = absorb_high_bias()(net)
    >>> absorbed.get_parameter("1.bias").data, absorbed.get_parameter("3.bias").data
    (tensor([3.]), tensor([4.]))
    """

    def transform(model: Any) -> fx.GraphModule:
        with torch.inference_mode(False), torch.no_grad():
            network = capture_for_equalization(model, "absorb_high_bias")
            found, misses = equalization_links(network)
            reasons = {link: _why_not(link) for link in found}
            others = [
                NearMiss(path_of(network, link.producer.node), "its readers", why) for link, why in reasons.items() if why
            ]
            pairs = tuple(link for link, why in reasons.items() if not why)
            wanted = "an op with a BatchNorm and a ReLU, whose readers are ops with weights and without padding"
            require_links(pairs, (*others, *misses), "absorb_high_bias", wanted)
            for link in pairs:
                _absorb(link)
            network.recompile()
            return network

    return transform


def _absorb(link: Link) -> None:
    gamma, beta = moments(link.producer.model, link.producer.node)
    constant = (beta - 3 * gamma).clamp_min(0)
    if not bool(constant.count_nonzero()):
        return
    module: Any = link.producer.model.get_submodule(str(link.producer.node.target))
    held = torch.ones_like(beta) if module.weight is None else module.weight.detach().double()
    store_norm(module, held, beta - constant)
    for end in link.ends:
        end.multiply(torch.ones_like(constant), constant)


def _why_not(link: Link) -> str:
    if not isinstance(link.producer, Rows) or link.producer.norm is None:
        return "no BatchNorm tells its mean and deviation"
    for end in link.ends:
        if not end.through or kind_of(end.through[0]) not in ("relu", "leaky_relu", "prelu"):
            return "it is not first read by a ReLU"
        if end.op.pads or not all(map(keeps_constants, end.through)):
            return "padding is read beside it, which no bias shifts"
    return ""


__all__ = ["absorb_high_bias"]
