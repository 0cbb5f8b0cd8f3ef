"""Estimate the mean of each channel of an activation from the BatchNorms before it, without data.

The output of a BatchNorm has mean beta and deviation |gamma|.  If it is normal, with phi and Phi the normal density and
distribution function, a = (low - beta) / |gamma| and b = (high - beta) / |gamma|, the mean after a clip is

    low Phi(a) + high (1 - Phi(b)) + beta (Phi(b) - Phi(a)) + |gamma| (phi(a) - phi(b)),

and after a ReLU (low = 0, no high)  |gamma| phi(-beta / |gamma|) + beta (1 - Phi(-beta / |gamma|)).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx, nn

from qfunc.corrections.channel_scaling import Layout, keeps_means, output_layout
from qfunc.corrections.scalable_ops import moments
from qfunc.graph.constants import read_attr
from qfunc.graph.linear_op import linear_op
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, has, kind_of, slots


def clipped_mean(mean: Tensor, deviation: Tensor, low: float, high: float) -> Tensor:
    """Return the mean of a clipped normal variable; bounds may be infinite, deviations 0.

    Source: Nagel et al., arXiv:1906.04721, appendix C, equations 20 to 29.

    >>> clipped_mean(torch.zeros(1).double(), torch.ones(1).double(), 0.0, math.inf)  # 1 / sqrt(2 pi)
    tensor([0.3989], dtype=torch.float64)
    """
    spread = deviation.clamp_min(torch.finfo(mean.dtype).tiny)
    below, above = (low - mean) / spread, (high - mean) / spread
    inner = mean * (torch.special.ndtr(above) - torch.special.ndtr(below)) + spread * (_density(below) - _density(above))
    total = inner + (0 if math.isinf(low) else low * torch.special.ndtr(below))
    total = total + (0 if math.isinf(high) else high * torch.special.ndtr(-above))
    return torch.where(deviation > 0, total, mean.clamp(low, high))


def _density(x: Tensor) -> Tensor:
    return torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)


@frozen(eq=False)
class ExpectedMeans:
    """The mean of each channel of a tensor, in float64, and the layout of its channels."""

    mean: Tensor
    layout: Layout


def expected_means(model: fx.GraphModule, node: fx.Node) -> ExpectedMeans | None:
    """Return the means of a node's value, or None if they do not follow from BatchNorms.

    >>> from torch import nn
    >>> from qfunc.frontend.capture import capture
    >>> net = capture()(nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.ReLU(), nn.AvgPool2d(2)))
    >>> expected_means(net, next(n for n in net.graph.nodes if kind_of(n) == "avg_pool")).mean
    tensor([0.3989, 0.3989], dtype=torch.float64)
    """
    kind = kind_of(node)
    inputs = [n for slot, n in slots(node) if slot == "input"]
    if kind == "batch_norm":
        return _means_of_norm(model, node)
    if has(node, Trait.CLAMPS) or has(node, Trait.ACTIVATION | Trait.SCALES_WITH_CHANNELS):
        return _means_of_activation(model, node, inputs[0])
    if kind in ("add", "concat"):
        means = [e for n in inputs if (e := expected_means(model, n)) is not None]
        if len(means) < max(2, len(inputs)) or any(e.layout != means[0].layout for e in means):
            return None
        if kind == "add":
            return ExpectedMeans(means[0].mean + means[1].mean, means[0].layout)
        last, axis = means[0].layout, means[0].layout.axis(attribute(node, "dim"))
        return ExpectedMeans(torch.cat([e.mean for e in means]), last) if axis == -last.back and not last.merged else None
    before = expected_means(model, inputs[0]) if len(inputs) == 1 and (kind == "dropout" or keeps_means(node)) else None
    layout = None if before is None else output_layout(node, before.layout)
    return None if before is None or layout is None else ExpectedMeans(before.mean, layout)


def _means_of_norm(model: fx.GraphModule, node: fx.Node) -> ExpectedMeans | None:
    module: Any = model.get_submodule(str(node.target))
    op, spatial = linear_op(model, node.all_input_nodes[0]), {nn.BatchNorm2d: 2, nn.BatchNorm3d: 3}.get(type(module))
    if op is not None:
        spatial = max(op.spatial, 0)
    if spatial is None or getattr(module, "running_var", None) is None:
        return None
    return ExpectedMeans(moments(model, node)[1], Layout(spatial + 1, spatial + 2))


def _means_of_activation(model: fx.GraphModule, node: fx.Node, norm: fx.Node) -> ExpectedMeans | None:
    means = _means_of_norm(model, norm) if kind_of(norm) == "batch_norm" else None
    if means is None:
        return None
    (deviation, mean), kind = moments(model, norm), kind_of(node)
    if has(node, Trait.CLAMPS):
        low, high = (0, None) if kind == "relu" else (attribute(node, "min"), attribute(node, "max"))
        if isinstance(low, fx.Node) or isinstance(high, fx.Node):
            return None
        bounds = -math.inf if low is None else float(low), math.inf if high is None else float(high)
        return ExpectedMeans(clipped_mean(mean, deviation, *bounds), means.layout)
    slope: Any = attribute(node, "negative_slope" if kind == "leaky_relu" else "weight")
    if isinstance(slope, fx.Node):
        if slope.op != "get_attr":
            return None
        slope = read_attr(model, slope).detach().double()
    positive = clipped_mean(mean, deviation, 0.0, math.inf)
    return ExpectedMeans(positive + slope * (mean - positive), means.layout)
