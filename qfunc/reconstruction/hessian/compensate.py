"""gptq: round the weights of linear layers in an order, so that later weights make up for the errors of earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from attrs import frozen
from torch import Tensor, fx, nn

from qfunc._transform import Transform
from qfunc.errors import CalibrationError, SpecError
from qfunc.execution.batches import require_batches, require_finite_input
from qfunc.execution.distributed import gather_counts, propagate_errors, ranks, require_group
from qfunc.execution.feed import feed_all
from qfunc.execution.progress import Progress
from qfunc.graph.float_network import float_network
from qfunc.graph.stages import require_float32
from qfunc.graph.submodules import require_submodules, with_submodules
from qfunc.graph.view import QuantizedModel
from qfunc.numerics.moments import damped, matching_weight, mixed_moments, second_moments
from qfunc.reconstruction.cache import Collector
from qfunc.reconstruction.hessian.ordered_sums import sum_in_order
from qfunc.reconstruction.hessian.replace_functions import replace_functions
from qfunc.reconstruction.hessian.solver import descend, error_of_rows, round_in_order
from qfunc.reconstruction.hessian.streams import Stream
from qfunc.reconstruction.hessian.weights import Columns, LayerWeight, layer_weights, together
from qfunc.specs.selectors import Selector, require_selector
from qfunc.transforms.batch_norm import fold_batch_norm

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Model = TypeVar("Model", bound=nn.Module)
Calls = list[dict[str, Any]]
"""The arguments of a graph by name, for each batch."""


def gptq(
    batches: Iterable[Any],
    progress: bool = True,
    *,
    damping: float = 0.01,
    passes: int = 2,
    earlier_errors: float = 1.0,
    select: Selector | None = None,
    float_batches: Iterable[Any] | None = None,
    group: ProcessGroup | None = None,
) -> Callable[[Model], Model]:
    """Return a transform of a calibrated model that rounds the weights of linear layers so that their errors cancel.

    For a layer with the weight W [out, in], GPTQ looks for codes with values V that have a small

        sum |W y - V x|^2 + d |W - V|^2,    d = damping mean(diag sum x x^T),

    where x are its inputs in the network as quantized so far, with its quantized activations, and  y = x + a (f - x)  for
    those in the float network, f: V makes up for the share a = `earlier_errors` of the errors of earlier layers, too.  Up to
    a constant this is

        tr (W' - V) H (W' - V)^T,    H = sum x x^T + d 1,    W' = W + a W (sum (f - x) x^T) H^-1.

    It rounds one column after the other, in the order of decreasing H_ii, and moves all later columns to the best real
    values for the columns rounded so far.  Scales and zero points stay those of the calibrated model, so that the result is
    an ordinary calibrated model for the same target.  The float weights stay, too: the quantizers store the rounding
    (`Compensation`).  An output for which rounding to nearest has a smaller error keeps its codes.  The model itself is not
    changed.  Where only weights have static scales, as for `gguf`, `calibrate` may also follow.

    Cost: each op runs twice on each batch.  Memory: all batches, and twice the values that later layers read, of all batches.
    With earlier_errors=0 the float network does not run, which halves both.
    A weight that several layers read is rounded for the first.  Only linear layers are rounded; other weights stay as they
    are.  Submodules quantized by `quantize(submodules=)` get their inputs from the float network.

    Args:
        batches: As for `calibrate`, of any sizes.  Padding counts as data.
        progress: Show a progress bar on a terminal, else a line every 30 seconds.
        damping: The share of the mean of H's diagonal that is added to the diagonal, above 0.
        passes: Further passes over all columns, each of which takes the best codes for the current ones of all others.
        earlier_errors: The share a of the errors of earlier layers, from 0 to 1; 0 is GPTQ as published.
        select: The layers to round.
        float_batches: For a model that is a part of a network: what the part reads in the float network, for each of
            `batches`, which is then what it reads in the quantized one.  None if both are the same.  Only
            counted for earlier_errors=0.
        group: As for `calibrate`: the sums cover the batches of all its processes, of which each needs one, added in
            order of rank in float64.  All processes get the same model.
    Raises:
        CalibrationError: no batches, NaN or infinite inputs of a layer, a site without qparams, parameters of 16 bits, or
            no quantized weights of linear layers.
        SpecError: damping, passes or earlier_errors out of bounds, a selector that matches no such layer, a weight with a
            function that Compensation cannot wrap, or a group that is none.
    Source: Frantar, Ashkboos, Hoefler, Alistarh, arXiv:2210.17323; W' is that of GPTAQ with its factor a, Li et al.,
        arXiv:2504.02692, in closed form; the passes follow QuantEase, arXiv:2309.01885.

    >>> import qfunc
    >>> from qfunc import targets
    >>> _ = torch.manual_seed(0)
    >>> x, net = torch.randn(64, 8) @ torch.randn(8, 8), nn.Linear(8, 8).requires_grad_(False)
    >>> nearest = qfunc.calibrate([x])(qfunc.quantize(targets.academic(3, 8))(net))
    >>> rounded = gptq([x])(nearest)
    >>> bool((rounded(x) - net(x)).square().sum() < (nearest(x) - net(x)).square().sum())
    True
    """
    require_batches(batches, "gptq", progress)
    if float_batches is not None:
        require_batches(float_batches, "gptq, float_batches", progress)
    if isinstance(damping, bool) or not isinstance(damping, int | float) or not 0 < damping < float("inf"):
        raise SpecError(where="gptq, damping", found=repr(damping), wanted="a positive number", do="Write damping=0.01.")
    if type(passes) is not int or passes < 0:
        raise SpecError(where="gptq, passes", found=repr(passes), wanted="0 or a positive integer", do="Write passes=2.")
    if isinstance(earlier_errors, bool) or not isinstance(earlier_errors, int | float) or not 0 <= earlier_errors <= 1:
        do = "Write earlier_errors=1.0."
        raise SpecError(where="gptq, earlier_errors", found=repr(earlier_errors), wanted="a number from 0 to 1", do=do)
    if select is not None:
        require_selector("gptq, select", select)
    require_group(group, "gptq")
    method = _Method(float(damping), passes, float(earlier_errors))

    def transform(calibrated: Model) -> Model:
        parts, processes = require_submodules(calibrated, "calibrated", "gptq"), ranks(group)
        for part in parts.values():
            require_float32(part, "gptq")
        with torch.inference_mode(False), torch.no_grad():
            graphs = {path: _Graph(fold_batch_norm()(part), select) for path, part in parts.items()}
            _require_layers(graphs.values(), select)
            with propagate_errors(processes):
                calls = _calls(calibrated, parts, batches)
                wanted = calls if float_batches is None else _calls(calibrated, parts, float_batches)
                _require_as_many(calls, wanted)
            with Progress("gptq", sum(len(g.layers) for g in graphs.values()), "layer", progress) as bar:
                for path, graph in graphs.items():
                    graph.run(calls[path], wanted[path], method, bar, processes)
            gather_counts((), 1, ["the result"], processes, "gptq")  # each has ended
        result: Any = with_submodules(calibrated, {path: graph.model for path, graph in graphs.items()}, "gptq")
        return result  # type: ignore[no-any-return]

    arguments = {"batches": batches, "progress": progress, "damping": damping, "passes": passes, "select": select,
                 "earlier_errors": earlier_errors, "float_batches": float_batches, "group": group}  # fmt: skip
    return Transform(gptq, arguments, transform)


def _calls(calibrated: nn.Module, parts: Mapping[str, fx.GraphModule], batches: Iterable[Any]) -> dict[str, Calls]:
    # The arguments of each part for each batch.
    collectors = {path: Collector(float_network(part)) for path, part in parts.items()}
    observers = {path: c.record if path == "" else c.observe for path, c in collectors.items()}
    if not feed_all(calibrated, observers, batches, "gptq", progress=False):
        do = "Pass a non-empty iterable, not one already used up."
        raise CalibrationError(where="gptq", found="no batches", wanted="at least one", do=do)
    return {path: c.calls for path, c in collectors.items()}


def _require_as_many(calls: Mapping[str, Calls], wanted: Mapping[str, Calls]) -> None:
    for path, found in wanted.items():
        if len(found) != len(calls[path]):
            do = "Give what the part reads in the float network for each of the batches, in their order."
            where = "gptq, float_batches"
            raise CalibrationError(where=where, found=f"{len(found)} calls", wanted=f"{len(calls[path])}", do=do)


@frozen
class _Method:
    """The numbers of `gptq`, by their names there."""

    damping: float
    passes: int
    earlier_errors: float


class _Graph:
    """A calibrated graph, which is changed in place; `run` rounds its weights."""

    def __init__(self, model: fx.GraphModule, select: Selector | None) -> None:
        self.model, self.view = model, QuantizedModel(model)
        self.layers, self.others = layer_weights(self.view, "gptq", select)

    def run(self, calls: Calls, float_calls: Calls, method: _Method, bar: Progress, group: ProcessGroup | None) -> None:
        """Round all weights, in the order of the layers, on the inputs of each call of all processes."""
        stream = Stream(self.view.network_so_far, calls, "gptq")
        wanted = Stream(self.view.float_network, float_calls, "gptq") if method.earlier_errors else None
        rounded = dict[str, Tensor]()
        for layers in together(self.layers, stream.input_of):
            bar.describe(f"gptq {layers[0].op}")
            with propagate_errors(group):
                own = _moments(layers[0].reader, stream, wanted)
            gather_counts(None, len(calls), [layers[0].path], group, "gptq")  # raises if a rank failed, or has another model
            hessian, *mixed = sum_in_order(own, group)
            with propagate_errors(group):
                hessian = damped(hessian, method.damping)
                for sums in (hessian, *mixed):
                    require_finite_input(sums, "gptq", layers[0].op)
                for layer, value in zip(layers, _rounded(layers, hessian, mixed, method), strict=True):
                    rounded[layer.path] = value
                    stream.replace(layer.node, value)
                    bar.advance()
        replaced = replace_functions(self.model, {layer.path: layer.function for layer in self.layers})
        for layer in self.layers:
            replaced[layer.path].get_buffer("shift").copy_(rounded[layer.path] - layer.weight)


def _moments(reader: str, stream: Stream, wanted: Stream | None) -> list[Tensor]:
    # The sums of this process up to an op: sum x x^T, and sum (y - x) x^T if there is a float network, [in, in] in float64.
    stream.run_to(reader)
    name = stream.input_of(reader)
    sums = [second_moments(values[name] for values in stream.values)]
    if wanted is not None:
        wanted.run_to(reader)
        real, pairs = wanted.input_of(reader), zip(wanted.values, stream.values, strict=True)
        sums.append(mixed_moments((y[real], x[name]) for y, x in pairs))
    return sums


def _rounded(layers: Sequence[LayerWeight], hessian: Tensor, mixed: Sequence[Tensor], method: _Method) -> list[Tensor]:
    small, columns = hessian.float(), Columns(layers)
    weight = torch.cat([layer.weight for layer in layers])
    for sums in mixed:
        weight = matching_weight(weight, hessian, method.earlier_errors * sums)
    value = round_in_order(weight, hessian, columns.round)
    for _ in range(method.passes):
        value = descend(weight, value, small, columns.round)
    nearest = torch.cat([layer.nearest() for layer in layers])
    worse = error_of_rows(weight, nearest, small) < error_of_rows(weight, value, small)
    return list(torch.split(torch.where(worse.unsqueeze(1), nearest, value), [len(layer.weight) for layer in layers]))


def _require_layers(graphs: Iterable[_Graph], select: Selector | None) -> None:
    graphs = list(graphs)
    if any(graph.layers for graph in graphs):
        return
    others = [path for graph in graphs for path in graph.others]
    if select is not None:
        raise SpecError(
            where="gptq, select",
            found=f"{select!r}, which matches no linear layer with a quantized weight",
            wanted="a selector of such layers",
            do=f"They are: {', '.join(others[:8]) or 'none'}.",
        )
    found, wanted = "no quantized weight that a linear layer reads", "at least one"
    do = "Quantize for a target that quantizes weights."
    raise CalibrationError(where="gptq", found=found, wanted=wanted, do=do)
