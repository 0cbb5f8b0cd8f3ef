"""replace_relu6: replace clips by ReLUs, which commute with scaling of channels; this changes the function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from qfunc._transform import Transform
from qfunc.corrections.channel_scaling import clips_from_zero
from qfunc.corrections.equalization_graph import capture_for_equalization
from qfunc.errors import SpecError


def replace_relu6() -> Callable[[nn.Module], fx.GraphModule]:
    """Return a transform of a float model that replaces each clip between 0 and a bound (ReLU6) by a ReLU.

    The function changes where values exceed the bound: measure the float accuracy again.  The paper does this to equalize
    MobileNets, because min(s x, 6) is not s min(x, 6), and chips fuse clips with one bound per tensor, not with bounds
    6 / s_i.  `equalize(deviations=3.0)` keeps the clips, and equalizes the channels that do not reach them.

    Raises:
        SpecError: the model has no such clip.
        CalibrationError: the model is quantized.
    Source: Nagel et al., arXiv:1906.04721, section 5.1.1 ("replacing ReLU6 with ReLU").

    >>> replace_relu6()(nn.Sequential(nn.ReLU6()))(torch.tensor([-1.0, 5.0, 7.0]))
    tensor([0., 5., 7.])
    """

    def transform(model: Any) -> fx.GraphModule:
        with torch.inference_mode(False):
            network = capture_for_equalization(model, "replace_relu6")
            clips = [n for n in network.graph.nodes if clips_from_zero(n)]
            if not clips:
                do = "Remove qfunc.replace_relu6."
                raise SpecError(
                    where="replace_relu6", found="no clip from 0", wanted="at least one ReLU6 or clamp(0, c)", do=do
                )
            for node in clips:
                node.target, node.args = F.relu, node.args[:1]
            network.recompile()
            return network

    return Transform(replace_relu6, {}, transform)
