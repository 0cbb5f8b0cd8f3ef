"""gptq: round the weights of linear layers in an order, so that later weights make up for the errors of earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn

from qfunc._transform import Transform
from qfunc.errors import CalibrationError, SpecError
from qfunc.execution.batches import require_batches
from qfunc.execution.feed import feed_all
from qfunc.execution.progress import Progress
from qfunc.graph.float_network import float_network
from qfunc.graph.submodules import require_submodules, with_submodules
from qfunc.graph.view import QuantizedModel
from qfunc.ops.node import attribute
from qfunc.reconstruction.cache import Collector
from qfunc.reconstruction.hessian.moments import Moments
from qfunc.reconstruction.hessian.solver import descend, error_of_rows, round_in_order
from qfunc.reconstruction.hessian.streams import Stream
from qfunc.reconstruction.hessian.weights import LayerWeight, layer_weights
from qfunc.specs.selectors import Selector, require_selector
from qfunc.transforms.batch_norm import fold_batch_norm
from qfunc.transforms.replace_functions import replace_functions

Model = TypeVar("Model", bound=nn.Module)


def gptq(
    batches: Iterable[Any],
    progress: bool = True,
    *,
    damping: float = 0.01,
    passes: int = 0,
    drift: bool = True,
    select: Selector | None = None,
) -> Callable[[Model], Model]:
    """X."""
    require_batches(batches, "gptq", progress)

    def transform(calibrated: Model) -> Model:
        parts = require_submodules(calibrated, "calibrated", "gptq")
        with torch.inference_mode(False), torch.no_grad():
            graphs = {path: _Graph(fold_batch_norm(part), select) for path, part in parts.items()}
            collectors = {path: Collector(float_network(part)) for path, part in parts.items()}
            observers = {path: c.record if path == "" else c.observe for path, c in collectors.items()}
            feed_all(calibrated, observers, batches, "gptq", False)
            with Progress("gptq", sum(len(g.weights) for g in graphs.values()), "layer", progress) as bar:
                for path, graph in graphs.items():
                    graph.run(collectors[path].calls, damping, passes, drift, bar)
        result: Any = with_submodules(calibrated, {path: graph.model for path, graph in graphs.items()}, "gptq")
        return result  # type: ignore[no-any-return]

    return Transform(gptq, {"batches": batches, "progress": progress}, transform)


class _Graph:
    """A calibrated graph, owned, whose weights `run` rounds."""

    def __init__(self, model: fx.GraphModule, select: Selector | None) -> None:
        self.model, self.view = model, QuantizedModel(model)
        self.weights = layer_weights(self.view, "gptq", select)

    def run(self, calls: list[dict[str, Any]], damping: float, passes: int, drift: bool, bar: Progress) -> None:
        quantized = Stream(self.view.network_so_far, calls, "gptq")
        real = Stream(self.view.float_network, calls, "gptq")
        rounded: dict[str, Tensor] = {}
        known: dict[str, Moments] = {}
        for weight in self.weights:
            bar.describe(f"gptq {weight.reader}")
            names = [_input(stream, weight.reader) for stream in (quantized, real)]
            for stream in (quantized, real):
                stream.run_to(weight.reader)
            if names[0] not in known:
                moments = Moments.of(weight.weight.shape[1], weight.weight.device)
                for x, y in zip(quantized.values, real.values, strict=True):
                    moments.add(x[names[0]], y[names[1]])
                known = {names[0]: moments}
            moments = known[names[0]]
            value = _rounded(weight, moments, damping, passes, drift)
            rounded[weight.path] = quantized.constants[weight.node] = value
            bar.advance()
        for path, module in replace_functions(self.model, {w.path: w.function for w in self.weights}).items():
            weight = next(w for w in self.weights if w.path == path)
            module.get_buffer("shift").copy_(rounded[path] - weight.weight)


def _input(stream: Stream, reader: str) -> str:
    node = next(n for n in stream.network.graph.nodes if n.name == reader)
    return str(attribute(node, "input").name)


def _rounded(weight: LayerWeight, moments: Moments, damping: float, passes: int, drift: bool) -> Tensor:
    hessian = moments.damped(damping)
    target = (moments.best(weight.weight, hessian) if drift else weight.weight).float()
    small = hessian.float()
    value = round_in_order(target, hessian, weight.round_column)
    for _ in range(passes):
        value = descend(target, value, small, weight.round_column)
    nearest = weight.nearest()
    worse = error_of_rows(target, nearest, small) < error_of_rows(target, value, small)
    return torch.where(worse.unsqueeze(1), nearest, value)
