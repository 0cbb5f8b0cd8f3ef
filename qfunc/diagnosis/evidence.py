"""What a diagnosis measures of a calibrated model: ranges on both sets of batches, and the largest value of each channel."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.analysis.layer_errors import LayerError, LayerErrors
from qfunc.graph.constants import read_attr
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.graph.selectors import Context
from qfunc.graph.sites import QuantizerNode
from qfunc.graph.view import QuantizedModel
from qfunc.ops.node import channel_axis
from qfunc.specs import PerTensor


@frozen(eq=False)
class Evidence:
    """The measurements.

    Attributes:
        view: The calibrated model.
        context: Its float network, for selectors.
        evaluated: The errors of each tensor on the evaluated batches.
        calibrated: The same on the batches of the calibration; None if they are the evaluated ones.
        channels: max |x| of each channel, by the name of the site.
        explained: The names of sites with a cause.
    """

    view: QuantizedModel
    context: Context
    evaluated: LayerErrors
    calibrated: LayerErrors | None
    channels: dict[str, Tensor]
    explained: frozenset[str] = frozenset()

    def rows(self, *slots: str) -> list[LayerError]:
        """Return the rows of quantized tensors of these slots, on the evaluated batches."""
        return [r for r in self.evaluated.rows if r.slot in slots and r.histogram is not None]

    def rest(self, *slots: str) -> list[LayerError]:
        """Return the rows without a cause, those that their quantizer alone changes most first."""
        rows = (r for r in self.rows(*slots) if r.alone is not None and r.tensor not in self.explained)
        return sorted(rows, key=lambda r: r.alone.sqnr if r.alone is not None else 0.0)

    def quantizers(self, sites: Iterable[str]) -> list[QuantizerNode]:
        """Return the quantizers of sites by name."""
        names = set(sites)
        return [q for q in self.view.quantizers if q.module.site.name in names]


def largest_by_channel(
    view: QuantizedModel, bind: Callable[[Any], tuple[Any, ...]], batches: Iterable[Any]
) -> dict[str, Tensor]:
    """Return max |x| of each channel of every tensor that is quantized with one scale, by the name of its site.

    The channels of a weight are its output channels.  Those of an activation [N, C, ...] are along axis 1; of three axes,
    along axis 1 or 2, whichever has the more unlike channels, because sequences have their channels last.
    """
    network = view.float_network
    nodes = {n.name: n for n in network.graph.nodes}
    single = [q for q in view.quantizers if isinstance(q.module.site.scheme.scale.shared, PerTensor)]
    weights = [q for q in single if q.module.site.slot == "weight" and q.module.site.constant]
    found = {q.module.site.name: _largest(_weight(network, nodes, q), channel_axis(nodes[q.readers[0]])) for q in weights}
    sites: dict[str, list[str]] = {}
    for quantizer in single:
        if not quantizer.module.site.constant:
            sites.setdefault(quantizer.tensor, []).append(quantizer.module.site.name)
    by_axis: dict[tuple[str, int], Tensor] = {}

    def observe(name: str, value: Any) -> None:
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.ndim < 2:
            return
        for axis in (1, 2) if value.ndim == 3 else (1,):
            new, old = _largest(value, axis), by_axis.get((name, axis))
            by_axis[name, axis] = new if old is None or old.shape != new.shape else torch.maximum(old, new)

    interpreter = ObservingInterpreter(network, observe, set(sites))
    with torch.inference_mode():
        for batch in batches:
            interpreter.run_batch(bind(batch), "diagnose")
    for tensor, names in sites.items():
        candidates = [by_axis[tensor, axis] for axis in (1, 2) if (tensor, axis) in by_axis]
        found |= dict.fromkeys(names, max(candidates, key=unlikeness)) if candidates else {}
    return found


def unlikeness(channels: Tensor) -> float:
    """Return the largest of the channels' ranges over their median; channels without values do not count.

    >>> unlikeness(torch.tensor([1.0, 2.0, 0.0, 80.0]))
    40.0
    """
    used = channels[channels > 0]
    return float(used.max() / used.median()) if used.numel() > 1 else 1.0


def _largest(value: Tensor, axis: int) -> Tensor:
    return value.abs().movedim(axis, 0).flatten(1).amax(1)


def _weight(network: fx.GraphModule, nodes: dict[str, fx.Node], quantizer: QuantizerNode) -> Tensor:
    return read_attr(network, nodes[quantizer.tensor]).detach()
