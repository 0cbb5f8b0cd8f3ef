"""The weights that GPTQ rounds: each with its quantizer, the op that reads it, and the columns of its codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor, fx

from qfunc.errors import SpecError
from qfunc.functions import Compensation
from qfunc.functions._inner import require_of_x
from qfunc.graph.constants import read_attr
from qfunc.graph.record import path_of
from qfunc.graph.selectors import Context, matches
from qfunc.graph.view import QuantizedModel
from qfunc.numerics.affine import fake_quantized_value, spread
from qfunc.numerics.qparams import Affine
from qfunc.ops.node import attribute, kind_of
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs import PerChannel, Scheme
from qfunc.specs.selectors import Selector


@frozen(eq=False)
class LayerWeight:
    """A weight [out, in] of linear layers; `reader` is the first of them by its name in the graph, `op` by its path."""

    path: str
    module: FakeQuantize
    node: str
    reader: str
    op: str
    weight: Tensor
    function: Compensation
    """The function that stores its rounding."""

    def nearest(self) -> Tensor:
        """Return the weight rounded to nearest."""
        return fake_quantized_value(self.weight, self.module.qparams(), self.module.scheme)


class Columns:
    """The codes of the columns of some weights, one below the other, whose schemes are equal."""

    def __init__(self, layers: Sequence[LayerWeight]) -> None:
        scheme = layers[0].module.scheme
        self.scheme = evolve(scheme, scale=evolve(scheme.scale, shared=PerChannel(0)))
        """The scheme of one column [out, 1]."""
        each = [layer.module.qparams() for layer in layers]
        rows = (_rows(of, layers) for of in zip(*each, strict=True))
        self.qparams = [Affine(*of) for of in zip(*rows, strict=True)]
        """Those of each column, [out, 1]."""

    def round(self, values: Tensor, column: int) -> Tensor:
        """Return the nearest values that the format has in a column [out]."""
        return fake_quantized_value(values.unsqueeze(1), self.qparams[column], self.scheme).squeeze(1)


def _rows(parameters: Sequence[Tensor | None], layers: Sequence[LayerWeight]) -> list[Any]:
    # A parameter of all weights, [out, 1] for each column; None for each, if they have none.
    found = [spread(p, w.weight, w.module.scheme) for p, w in zip(parameters, layers, strict=True) if p is not None]
    columns = layers[0].weight.shape[1]
    if not found:
        return [None] * columns
    width = max(p.shape[-1] if p.ndim else 1 for p in found)
    rows = torch.cat([p.expand(len(w.weight), width) for p, w in zip(found, layers, strict=True)]).T.contiguous().unsqueeze(2)
    return list(rows.expand(columns, -1, -1).unbind())


def together(layers: Sequence[LayerWeight], input_of: Callable[[str], str]) -> Iterator[tuple[LayerWeight, ...]]:
    """Yield layers in a row that read the same tensor and have equal schemes: their weights share the order of the columns.

    Args:
        layers: In the order of the network.
        input_of: The name of the tensor that an op reads, by the name of the op.
    """
    for _, found in groupby(layers, key=lambda layer: (input_of(layer.reader), layer.module.scheme)):
        yield tuple(found)


def layer_weights(view: QuantizedModel, step: str, select: Selector | None) -> tuple[list[LayerWeight], list[str]]:
    """Return the weights of linear layers that the target quantizes, in the order of the layers, and the paths of others.

    The others are those that the selector does not match.

    Args:
        view: A calibrated model.
        step: The name of the public function, for messages.
        select: A selector of the layers; None for all.
    Raises:
        SpecError: a function that Compensation cannot wrap.
    """
    network = view.float_network
    nodes = {n.name: n for n in network.graph.nodes}
    order = {name: i for i, name in enumerate(nodes)}
    calls = {n.target: n.name for n in view.network_so_far.graph.nodes if n.op == "call_module"}
    record = view.record
    context = Context(network, record.target.ops if record.target else ())
    found, others = list[LayerWeight](), dict[str, str]()
    for quantizer in view.quantizers:
        readers = sorted((r for r in quantizer.readers if _is_linear(nodes[r], quantizer.tensor)), key=order.__getitem__)
        if not quantizer.module.site.constant or not readers or not isinstance(quantizer.module.site.value, Scheme):
            continue
        op = path_of(network, nodes[readers[0]])
        if select is not None and not any(matches(select, nodes[r], context) for r in readers):
            others[readers[0]] = op
            continue
        weight = read_attr(network, nodes[quantizer.tensor]).detach().float()
        function = _compensation(quantizer.module, weight, step)
        found.append(LayerWeight(quantizer.path, quantizer.module, calls[quantizer.path], readers[0], op, weight, function))
    return sorted(found, key=lambda w: order[w.reader]), [others[reader] for reader in sorted(others, key=order.__getitem__)]


def _is_linear(node: fx.Node, tensor: str) -> bool:
    return kind_of(node) == "linear" and attribute(node, "weight").name == tensor


def _compensation(module: FakeQuantize, weight: Tensor, step: str) -> Compensation:
    function = module.site.function
    if module.scheme.scale.integers is not None or module.scheme.minimum:
        raise SpecError(
            where=f"{step}, site {module.site.name!r}",
            found="a scheme whose scales or minimums are searched together with the codes",
            wanted="scales that stay when codes change",
            do="Use a type with scales alone, such as Q4_0, or exclude the op with select=.",
        )
    try:
        found = function if isinstance(function, Compensation) else Compensation(function)
        require_of_x("Compensation", found, found.init(module.qparams(), weight, module.scheme), weight, module.scheme)
    except SpecError as e:
        raise SpecError(
            where=f"{step}, site {module.site.name!r}",
            found=f"the function {function!r}",
            wanted="a function that Compensation can wrap: " + e.wanted,
            do="Use edit.weights(function=Fixed()) first, or exclude the op with select=.",
        ) from e
    return found
