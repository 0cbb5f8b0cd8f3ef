"""A unit's module for training: soft weights, precomputed constants, and activations with random drop and learned scales."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from qfunc.errors import SpecError
from qfunc.functions import AdaRound
from qfunc.graph.constants import read_attr
from qfunc.graph.sites import QuantizerNode, quantizer_nodes
from qfunc.numerics.qparams import Affine
from qfunc.ops.node import kind_of
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.quantizers.params import flatten, unflatten
from qfunc.reconstruction.data_flow import has_rounding
from qfunc.reconstruction.hessian.replace_functions import replace_functions
from qfunc.reconstruction.layout import Layout
from qfunc.reconstruction.random_drop import LEARNED, DropRate, drop_steps, is_plain, learned_qparams, mix
from qfunc.reconstruction.rounding import RoundingState
from qfunc.specs import Int, Scheme


class _Constant(nn.Module):
    """A constant that replaces its quantizer."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return self.value


class _Activation(nn.Module):
    """An activation's quantizer with its own function, or LSQ if its scale trains, applied to random elements."""

    def __init__(self, quantizer: FakeQuantize, learns: bool, quantized: DropRate | None, layout: Layout) -> None:
        super().__init__()
        self.scheme, self.quantized, self.learns, self.layout = quantizer.scheme, quantized, learns, layout
        self.function: Any = LEARNED if learns else quantizer.site.function
        if learns:
            qparams = quantizer.qparams()
            initial = LEARNED.init(qparams, qparams.scale, self.scheme)
            self.params: Any = initial._replace(scale=initial.scale.detach().clone().requires_grad_())
            self.zero = float(initial.zero_point) if initial.zero_point.ndim == 0 else None
        else:
            tensors = {name: t.detach() for name, t in flatten(quantizer.params())}
            self.params = unflatten(quantizer.template, tensors.__getitem__)

    def forward(self, x: Tensor) -> Tensor:
        mask = None if self.quantized is None else self.quantized(x, self.layout)
        if self.learns and self.zero is not None and is_plain(x.dtype, self.params.scale, self.scheme):
            return drop_steps(x, self.params.scale, self.zero, self.scheme, mask)
        with torch.set_grad_enabled(torch.is_grad_enabled() and (self.learns or x.requires_grad)):  # faster without gradient
            value = self.function.apply(self.params, x, self.scheme)
        return mix(x, value, mask)

    def qparams(self) -> Affine:
        """Return the learned qparams."""
        return learned_qparams(self.params, self.scheme)


class Trainable:
    """A copy of a unit's module for training, with its trainable rounding and scales.

    Args:
        simulated: The unit with the model's quantizers, which are not changed.
        rounded: The paths of the quantizers of weights to round.
        learning: The paths of the quantizers of activations with scales to train.
        quantized: The random mask of quantized elements of activations; None: all elements.
        layout: The layouts of the values of the float network.
    """

    def __init__(
        self,
        simulated: fx.GraphModule,
        rounded: Collection[str],
        learning: Collection[str],
        quantized: DropRate | None,
        layout: Mapping[str, Layout],
    ) -> None:
        graph, replacements = simulated.graph, dict[str, nn.Module]()
        sites: dict[str, tuple[FakeQuantize, Tensor]] = {}
        self.activations: dict[str, _Activation] = {}
        for node in graph.nodes:
            path = str(node.target)
            if node.op != "call_module" or kind_of(node) != "fake_quantize" or path in replacements:
                continue
            module: Any = simulated.get_submodule(path)
            if path in rounded:
                sites[path] = module, _in_cache_layout(read_attr(simulated, node.all_input_nodes[0]).detach(), node)
            elif module.site.constant:
                with torch.no_grad():
                    replacements[path] = _Constant(module(read_attr(simulated, node.all_input_nodes[0])).detach())
            elif not module.dynamic:
                activation = replacements[path] = _Activation(module, path in learning, quantized, layout[_quantized_by(node)])
                if path in learning:
                    self.activations[path] = activation
        self.paths = list(sites)
        self.rounding = RoundingState(list(sites.values()))
        replacements |= {path: _Constant(weight) for path, weight in zip(sites, self.rounding.weights, strict=True)}
        self.module = _with_submodules(simulated, replacements)

    def scales(self) -> list[Tensor]:
        """Return the scales that train."""
        return [a.params.scale for a in self.activations.values()]


def learnable(module: FakeQuantize) -> bool:
    """Return True if a quantizer of activations has a scale that can train: an arbitrary number, not tied to others."""
    site, scale = module.site, module.scheme.scale
    free = isinstance(site.value, Scheme) and not site.constant and not scale.dynamic and site.tie is None
    return free and not scale.power_of_two and scale.within is None


def _quantized_by(quantizer: fx.Node) -> str:
    # The name, in the float network, of the value that a quantizer reads.
    node = quantizer.all_input_nodes[0]
    while node.op == "call_module" and kind_of(node) in ("fake_quantize", "dropout"):
        node = node.all_input_nodes[0]
    return node.name


def _in_cache_layout(weight: Tensor, quantizer: fx.Node) -> Tensor:
    # In the memory layout of the cached images, so that convolutions do not convert it in each pass.
    if weight.ndim == 4 and weight.device.type == "cpu" and all(kind_of(u) == "conv" for u in quantizer.users):
        return weight.contiguous(memory_format=torch.channels_last)
    return weight


def _with_submodules(module: fx.GraphModule, replacements: dict[str, nn.Module]) -> fx.GraphModule:
    # The same graph with replaced submodules at some paths; everything else is shared.
    attributes: dict[str, Any] = {}
    for node in module.graph.nodes:
        path = str(node.target)
        if node.op == "get_attr":
            value = read_attr(module, node)
            attributes[path] = nn.Parameter(value.detach(), requires_grad=False) if isinstance(value, nn.Parameter) else value
        elif node.op == "call_module":
            attributes[path] = replacements.get(path) or module.get_submodule(path)
    graph = fx.Graph()
    output = fx.Graph.graph_copy(graph, module.graph, {})
    graph.output(output)
    return fx.GraphModule(attributes, graph)


_UNDECIDED = 1e-4  # |v| that determines the rounding but can change sign in the first step of training


def roundable(network: fx.GraphModule, quantizers: Collection[QuantizerNode]) -> list[QuantizerNode]:
    """Return the weights with a rounding to learn: integers with their own scale, read only by ops that pass `has_rounding`."""
    nodes = {n.name: n for n in network.graph.nodes}
    return [
        quantizer
        for quantizer in quantizers
        if quantizer.module.site.constant
        and quantizer.module.site.slot == "weight"
        and isinstance(quantizer.module.site.value, Scheme)
        and isinstance(quantizer.module.scheme.format, Int)
        and all(has_rounding(nodes[reader]) for reader in quantizer.readers)
    ]


def with_adaround(model: fx.GraphModule, paths_to_wrap: Collection[str]) -> None:
    """Wrap the functions of the quantizers at some paths in AdaRound, preserving their codes.

    Only for transforms that own the model.

    Raises:
        SpecError: a function that AdaRound cannot wrap.
    """
    old = {q.path: q.module for q in quantizer_nodes(model) if q.path in paths_to_wrap}
    nodes = {str(n.target): n for n in model.graph.nodes if n.op == "call_module"}
    weights = {path: read_attr(model, nodes[path].all_input_nodes[0]).detach() for path in old}
    start = {path: module.export(weights[path])[0] for path, module in old.items()}
    wrapped = {p: m.site.function if isinstance(m.site.function, AdaRound) else _wrap(m) for p, m in old.items()}
    for path, module in replace_functions(model, wrapped).items():
        nearest, v = module.export(weights[path])[0], module.get_parameter("v")
        v.copy_(torch.where(start[path] == nearest, v, _UNDECIDED * (start[path] - nearest).sign()))


def _wrap(module: FakeQuantize) -> AdaRound:
    try:
        return AdaRound(module.site.function)
    except SpecError as e:
        raise SpecError(
            where=f"reconstruct, site {module.site.name!r}",
            found=f"the function {module.site.function!r}",
            wanted="a function that AdaRound can wrap: " + e.wanted,
            do="Use edit.weights(function=Fixed()) first, or exclude the op with select=.",
        ) from e
