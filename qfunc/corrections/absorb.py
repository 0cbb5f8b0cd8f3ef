"""absorb_high_bias: move the part of an activation that is nearly always present into the next bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from qfunc._transform import Transform
from qfunc.corrections.channel_scaling import keeps_constants
from qfunc.corrections.equalization_graph import Link, NearMiss, capture_for_equalization, equalization_links, require_links
from qfunc.corrections.scalable_ops import Rows, moments, store_norm
from qfunc.graph.record import path_of
from qfunc.ops.definition import Trait
from qfunc.ops.node import has


def absorb_high_bias() -> Callable[[nn.Module], fx.GraphModule]:
    """Return a transform of a float model that reduces activation ranges that `equalize` enlarged.

    For each pair  w2 f(norm(x)) + b2,  with f a ReLU, leaky ReLU or PReLU, and each channel between,

        c = max(0, beta - 3 |gamma|),   beta' = beta - c,   b2' = b2 + w2 c,

    because f(y - c) = f(y) - c for y >= c.  The float model changes only where y < c: for 0.135 % of the values if y is
    normal with mean beta and deviation |gamma|.  The pairs are the pairs of `equalize` with a BatchNorm in the first op and no
    padding in the second, because zeros around an image would not shift.

    Returns:
        A function from a module, or from the result of `qfunc.capture` or `equalize`, to a captured model.
    Raises:
        SpecError: there is no pair; the message gives the reasons.
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
            links, misses = equalization_links(network)
            reasons = {link: _why_not(link) for link in links}
            without_norm = [
                NearMiss(path_of(network, link.producer.node), "its readers", why) for link, why in reasons.items() if why
            ]
            pairs = tuple(link for link, why in reasons.items() if not why)
            wanted = "an op with a BatchNorm and a ReLU, read only by ops with weights and without padding"
            require_links(pairs, (*without_norm, *misses), "absorb_high_bias", wanted)
            for link in pairs:
                _absorb(link)
            network.recompile()
            return network

    return Transform(absorb_high_bias, {}, transform)


def _absorb(link: Link) -> None:
    gamma, beta = moments(link.producer.model, link.producer.node)
    constant = (beta - 3 * gamma).clamp_min(0)
    if not bool(constant.count_nonzero()):
        return
    module: Any = link.producer.model.get_submodule(str(link.producer.node.target))
    weight = torch.ones_like(beta) if module.weight is None else module.weight.detach().double()
    store_norm(module, weight, beta - constant)
    for end in link.ends:
        end.multiply(torch.ones_like(constant), constant)


def _why_not(link: Link) -> str:
    if not isinstance(link.producer, Rows) or link.producer.norm is None:
        return "it has no BatchNorm, so its mean and deviation are unknown"
    for end in link.ends:
        if not end.through or not has(end.through[0], Trait.ACTIVATION | Trait.SCALES_WITH_CHANNELS):
            return "its output does not go directly into a ReLU"
        if end.op.pads or not all(map(keeps_constants, end.through)):
            return "its reader also reads padding, which a bias does not shift"
    return ""
