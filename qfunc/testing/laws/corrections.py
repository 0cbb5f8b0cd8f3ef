"""The law of corrections: each op of a changed float model computes the original value, up to the rounding of weights.

Each op of the changed model gets the original model's values in float64, divided by the factors of its channels.  Its
output, times its own factors, is compared with the original value.  So the bound is that of one op and, unlike a bound of
the outputs, does not grow with the depth of the network.

A weight w' = w s_in / s_out is rounded to its dtype at most twice, once for each factor: w' (1 + d)^2 with |d| <= u, u half
the spacing of numbers above 1.  The factors are derived from the weights: s_out of a norm from gamma + |beta|, each rounded
once, with an error of u; s_out of an op without norm from a row, with the error of s_in and two more roundings.  With e_in
and e_out roundings in the factors, the error of an output is at most

    ((1 + u)^(2 + e_in + e_out) - 1) (|w'| * |x'| + |b'|) s_out,

where * is the op itself; folding rounds w' and b' once.  The float64 sums of at most 2^16 terms add 2^-36 of the same.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, fx, nn

from qfunc.corrections.channel_scaling import output_layout
from qfunc.corrections.equalization_graph import Link, equalization_links
from qfunc.corrections.scalable_norms import ScalableNorm
from qfunc.corrections.scalable_ops import Rows, moments
from qfunc.graph.constants import read_attr
from qfunc.graph.linear_op import before, linear_op
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, has, kind_of

_FLOAT64 = 2.0**-36


def worst_violation(model: fx.GraphModule, changed: fx.GraphModule, inputs: tuple[Any, ...]) -> tuple[float, str]:
    """Return the largest ratio of a difference to its bound, at most 1 if the law holds, and the name of its op.

    Args:
        model: A captured float model in evaluation.
        changed: The result of equalize, smooth_quant or folding for this model.
        inputs: Positional inputs of one call.
    Raises:
        AssertionError: an op of the changed model is not in the model.

    >>> import qfunc
    >>> net = qfunc.capture()(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3)).eval())
    >>> worst, _ = worst_violation(net, qfunc.equalize()(net), (torch.randn(2, 3, 6, 7),))
    >>> worst <= 1
    True
    >>> other = qfunc.equalize()(net)
    >>> _ = other.get_parameter("2.weight").data.mul_(1.001)
    >>> worst_violation(net, other, (torch.randn(2, 3, 6, 7),))[1]
    '_2'
    """
    unit = max((torch.finfo(p.dtype).eps for p in model.parameters()), default=2.0**-23) / 2
    wide = tuple(x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs)
    model, changed = (copy.deepcopy(m).double().eval() for m in (model, changed))
    with torch.inference_mode():
        values = _Values(model)
        values.run(*wide, enable_io_processing=False)
        return _Law(model, changed, values.of, unit).worst()


class _Values(fx.Interpreter):
    """The values of all nodes."""

    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__(model, garbage_collect_values=False)
        self.of: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.of[n.name] = value = super().run_node(n)
        return value


class _Factors:
    """The factors by which the tensors of each link were divided, their channel axes, and the numbers of roundings."""

    def __init__(self, model: fx.GraphModule, changed: fx.GraphModule) -> None:
        self.of: dict[str, tuple[Tensor, int, int]] = {}
        self.producers: set[str] = set()
        # The factors of the inputs of ops with weights, one per column.
        self.columns: dict[str, tuple[Tensor, int]] = {}
        here = {link.producer.node.name: link for link in equalization_links(model, gains=True, clips=True)[0]}
        for link in equalization_links(changed, gains=True, clips=True)[0]:
            if link.producer.node.name not in here:
                continue  # a folded op
            factor, roundings = self._of_link(here[link.producer.node.name], link)
            layout = link.producer.layout
            self.producers.add(link.producer.node.name)
            self.of[link.producer.node.name] = factor, layout.back, roundings
            for end in link.ends:
                after = layout
                for node in end.through:
                    after = output_layout(node, after) or after  # a clip that no value reaches
                    self.of[node.name] = end.each(factor) if after.merged else factor, after.back, roundings
                self.columns[end.op.node.name] = end.each(factor), roundings

    def _of_link(self, old: Link, new: Link) -> tuple[Tensor, int]:
        if isinstance(new.producer, Rows) and isinstance(old.producer, Rows) and new.producer.norm is None:
            scale, roundings = self.columns.get(new.producer.node.name, (torch.ones(new.producer.op.inputs).double(), 0))
            read = before(old.producer.op.weight(), old.producer.op.bias(), scale, 0 * scale, new.producer.op.groups)[0]
            return _ratio(read.flatten(1).abs().amax(1), new.producer.op.weight().flatten(1).abs().amax(1)), roundings + 2
        return _ratio(*(_size(link.producer) for link in (old, new))), 1


def _size(producer: Rows | ScalableNorm) -> Tensor:
    if isinstance(producer, ScalableNorm) and producer.constants:
        return torch.stack([read_attr(producer.model, n).detach().double().abs() for n in producer.constants]).sum(0)
    gamma, beta = moments(producer.model, producer.node)
    return gamma + beta.abs()


def _ratio(old: Tensor, new: Tensor) -> Tensor:
    return torch.where((old > 0) & (new > 0), old / new, 1.0)


class _Law:
    def __init__(self, model: fx.GraphModule, changed: fx.GraphModule, values: dict[str, Any], unit: float) -> None:
        self.changed, self.values, self.unit = changed, values, unit
        self.factors = _Factors(model, changed)
        self.names, self.interpreter = {n.name for n in changed.graph.nodes}, fx.Interpreter(changed)
        self.old = {n.name: n for n in model.graph.nodes}
        self.alias = {n.name: self._counterpart(n) for n in changed.graph.nodes if n.op != "get_attr"}

    def _counterpart(self, node: fx.Node) -> str:
        # An op with weights into which others were folded has the value of the last of them.  A norm that was folded into
        # one of several readers does not change the op's value.
        readers = node.users if has(node, Trait.WEIGHTED) else ()
        read = {self._read_before(r, node) for r in readers}
        if len(read) == 1 and not read & self.names:
            return read.pop()
        assert node.name in self.old, f"{node.name!r} is no op of the model"
        return node.name

    def _read_before(self, reader: fx.Node, node: fx.Node) -> str:
        # The reader's original input at the node's position; a separate convolution may replace a norm.
        inputs = self.old[reader.name if reader.name in self.old else self._counterpart(reader)].all_input_nodes
        original: str = inputs[reader.all_input_nodes.index(node)].name
        return original

    def worst(self) -> tuple[float, str]:
        found = [(self._excess(n), n.name) for n in self.changed.graph.nodes if n.op.startswith("call_")]
        return max(found, default=(0.0, ""))

    def _excess(self, node: fx.Node) -> float:
        wanted = self.values[self.alias[node.name]]
        if not isinstance(wanted, Tensor) or not wanted.is_floating_point() or not wanted.numel():
            return 0.0
        scale, roundings = self._scale(node)
        found, size = self._call(node)
        own = self.factors.columns.get(node.name, (None, 0))[1]
        changes = has(node, Trait.WEIGHTED) or node.name in self.factors.producers
        relative = (math.expm1((2 + own + roundings) * math.log1p(self.unit)) if changes else 0.0) + _FLOAT64
        difference = (found * scale - wanted).abs()
        bound = relative * size * scale
        # If no magnitudes are added, nothing may differ.
        return float(torch.where(difference > 0, difference / bound, 0.0).nan_to_num(math.inf, math.inf).max())

    def _scale(self, node: fx.Node) -> tuple[Tensor | float, int]:
        if node.name not in self.factors.of:
            return 1.0, 0
        factor, back, roundings = self.factors.of[node.name]
        return factor.reshape(-1, *[1] * (back - 1)), roundings

    def _read(self, node: Any) -> Any:
        if node.op == "get_attr":
            return read_attr(self.changed, node)
        value = self.values[self.alias[node.name]]
        return value / self._scale(node)[0] if isinstance(value, Tensor) and node.name in self.factors.of else value

    def _call(self, node: fx.Node) -> tuple[Tensor, Tensor]:
        # The op's output, and the sum of the magnitudes of its terms.
        args: Any = fx.map_arg(node.args, self._read)
        kwargs: Any = fx.map_arg(node.kwargs, self._read)
        call: Any = getattr(self.interpreter, node.op)
        found: Tensor = call(node.target, args, kwargs)
        if linear_op(self.changed, node) is not None:
            return found, call(node.target, tuple(a.abs() if isinstance(a, Tensor) else a for a in args), kwargs)
        if kind_of(node) == "batch_norm":
            norm: Any = self.changed.get_submodule(str(node.target))
            gamma, beta = (None if p is None else p.abs() for p in (norm.weight, norm.bias))
            x = args[0].abs()
            return found, nn.functional.batch_norm(x, -norm.running_mean.abs(), norm.running_var, gamma, beta, eps=norm.eps)
        if has(node, Trait.NORM) and kind_of(node) != "batch_norm":
            # |w n| + |b| <= |w n + b| + 2 |b|
            bias: Any = attribute(node, "bias") if kind_of(node) == "layer_norm" else None
            return found, found.abs() + (0 if bias is None else 2 * self._read(bias).abs())
        read = [a for a in args if isinstance(a, Tensor) and a.is_floating_point() and a.numel()]
        return found, found.abs().clamp_min(max((float(a.abs().max()) for a in read), default=0.0))
