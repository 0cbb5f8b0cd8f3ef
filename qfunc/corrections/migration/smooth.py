"""smooth_quant: move the magnitude of channels with large activations into the weights that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from qfunc._transform import Transform
from qfunc.corrections.equalization_graph import Link, capture_for_equalization, equalization_links, require_links
from qfunc.corrections.scalable_ops import Columns
from qfunc.errors import SpecError
from qfunc.execution.batches import require_batches, require_finite_input
from qfunc.execution.distributed import gather_counts, propagate_errors, ranks, require_group
from qfunc.execution.feed import feed_all
from qfunc.graph.float_network import float_network
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.graph.record import path_of
from qfunc.ops.node import attribute
from qfunc.passes.fuse_norms import NORMS
from qfunc.passes.rewrite import rewrite

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def smooth_quant(
    batches: Iterable[Any], progress: bool = True, *, alpha: float = 0.5, group: ProcessGroup | None = None
) -> Callable[[nn.Module], fx.GraphModule]:
    """Return a transform of a float model that smooths inputs of linear layers, for per-tensor activation scales.

    For each channel j that linear layers read, with X_j its values over the batches and W_j its columns in these layers,

        s_j = max |X_j|^alpha / max |W_j|^(1 - alpha),   X'_j = X_j / s_j,   W'_j = W_j s_j.

    X is divided in the op that computes it: a LayerNorm or RMSNorm with a weight (also one composed of several ops), a
    BatchNorm, or an op with weights before ReLUs and the like.  The float model does not change, except for the rounding of
    each tensor to its dtype.  All readers must be linear layers: a norm that a residual add also reads keeps its weight.  A
    channel that is 0 in X or W keeps s = 1.  One pass; memory does not grow with the number of batches.

    Args:
        batches: As for `calibrate`.
        progress: Show a progress bar on a terminal, else a line every 30 seconds.
        alpha: The share of the ranges that is moved to the weights, 0 to 1; 1/2 makes both ranges equal.
        group: As for `calibrate`: the maxima cover the batches of all its processes.
    Returns:
        A function from a module, or from the result of `qfunc.capture`, to a captured model for `quantize`.
    Raises:
        SpecError: alpha out of bounds, or no such linear layers; the message gives the reasons.
        CalibrationError: no batches, NaN or infinite values, or a model that is quantized.
    Source: Xiao et al., arXiv:2211.10438, section 4, equations 3 and 4.

    >>> net = nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 1, bias=False)).eval()
    >>> _ = net[0].weight.data.copy_(torch.tensor([16.0, 1.0])), net[1].weight.data.fill_(1.0)
    >>> even = smooth_quant([torch.tensor([[1.0, -1.0]])])(net)
    >>> even.get_parameter("0.weight").data, even.get_parameter("1.weight").data
    (tensor([4.0000, 1.0000]), tensor([[4.0000, 1.0000]]))
    """
    require_batches(batches, "smooth_quant", progress)
    require_group(group, "smooth_quant")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 <= alpha <= 1:
        do = "Write qfunc.smooth_quant(batches, alpha=0.5)."
        raise SpecError(where="smooth_quant, alpha", found=repr(alpha), wanted="a number from 0 to 1", do=do)

    def transform(model: Any) -> fx.GraphModule:
        with torch.inference_mode(False), torch.no_grad():
            network, processes = rewrite(capture_for_equalization(model, "smooth_quant"), *NORMS), ranks(group)
            links, misses = equalization_links(network, gains=True)
            links = tuple(link for link in links if all(end.op.kind == "linear" for end in link.ends))
            require_links(
                links, misses, "smooth_quant", "linear layers that are the only readers of a norm or an op with weights"
            )
            maxima = _Maxima(network, links)
            with propagate_errors(processes):
                count = feed_all(maxima.network, {"": maxima.observe}, batches, "smooth_quant", progress)
            states, _ = gather_counts(maxima.values, count, sorted(maxima.channels), processes, "smooth_quant")
            factors = []
            for link in links:
                largest = maxima.largest(link, states)
                require_finite_input(largest, "smooth_quant", path_of(network, link.ends[0].op.node))
                factors.append(_factors(link, largest, float(alpha)))
            for link, by in zip(links, factors, strict=True):
                link.scale(by)
            network.recompile()
            return network

    return Transform(smooth_quant, {"batches": batches, "progress": progress, "alpha": alpha, "group": group}, transform)


class _Maxima:
    """max |X_j| per channel of the inputs of each link's linear layers."""

    def __init__(self, model: fx.GraphModule, links: tuple[Link, ...]) -> None:
        self.network = float_network(model)
        names = {n.name for n in self.network.graph.nodes}
        self.names = {link: sorted({_observed_name(end, names) for end in link.ends}) for link in links}
        self.channels = {name: link.producer.channels for link, names_of_link in self.names.items() for name in names_of_link}
        self.values: dict[str, Tensor] = {}
        self.interpreter = ObservingInterpreter(self.network, self._add, set(self.channels))

    def observe(self, arguments: tuple[Any, ...], number: int) -> Any:
        """Process one batch."""
        return self.interpreter.run_batch(arguments, f"smooth_quant, batch {number}")

    def _add(self, name: str, value: Any) -> None:
        if value.numel():
            # A flattened image has several consecutive columns per channel.
            largest = value.abs().reshape(-1, self.channels[name], value.shape[-1] // self.channels[name]).amax((0, 2)).double()
            self.values[name] = torch.maximum(self.values[name], largest) if name in self.values else largest

    def largest(self, link: Link, states: list[dict[str, Tensor]]) -> Tensor:
        """Return the maxima over all processes."""
        maxima = [state[name] for state in states for name in self.names[link] if name in state]
        return torch.stack(maxima).amax(0) if maxima else torch.zeros(link.producer.channels)


def _observed_name(end: Columns, names: set[str]) -> str:
    # The input of a layer before dropouts.
    node = attribute(end.op.node, "input")
    while node.name not in names:
        node = node.all_input_nodes[0]
    return str(node.name)


def _factors(link: Link, largest: Tensor, alpha: float) -> Tensor:
    weights = torch.stack([end.ranges() for end in link.ends]).amax(0)
    largest = largest.to(weights)
    by = largest**alpha / weights ** (1 - alpha)
    return torch.where((largest > 0) & (weights > 0) & by.isfinite() & (by > 0), by, 1.0)
