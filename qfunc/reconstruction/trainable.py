"""A unit as training sees it: soft weights, constants computed once, activations that drop and whose scales learn."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from operator import or_
from typing import Any

import torch
from attrs import evolve
from torch import Tensor, fx, nn

from qfunc.errors import SpecError
from qfunc.functions import AdaRound
from qfunc.graph.constants import read_attr
from qfunc.graph.record import attach, record_of
from qfunc.graph.selectors import Context
from qfunc.graph.sites import QuantizerNode, quantizer_nodes
from qfunc.numerics.qparams import Affine
from qfunc.ops.vocabulary import kind_of
from qfunc.placement.ties import tie_parameters
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.quantizers.params import flatten, unflatten
from qfunc.reconstruction.data_flow import LINEAR_KINDS
from qfunc.reconstruction.random_drop import LEARNED, DropRate, drop_steps, is_plain, learned_qparams, mix
from qfunc.reconstruction.rounding import Rounding
from qfunc.specs import Int, Override, Scheme, edit
from qfunc.specs.protocols import Function

__all__ = ["Trainable", "learnable", "roundable", "with_adaround"]


class _Held(nn.Module):
    """A constant in place of its quantizer."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return self.value


class _Activation(nn.Module):
    """An activation's quantizer: by its own function, or by LSQ if its scale learns; each element by chance."""

    def __init__(self, quantizer: FakeQuantize, learns: bool, quantized: DropRate | None) -> None:
        super().__init__()
        self.scheme, self.quantized, self.learns = quantizer.scheme, quantized, learns
        self.function: Any = LEARNED if learns else quantizer.site.function
        if learns:
            qparams = quantizer.qparams()
            given = LEARNED.init(qparams, qparams.scale, self.scheme)
            self.params: Any = given._replace(scale=given.scale.detach().clone().requires_grad_())
            self.zero = float(given.zero_point) if given.zero_point.ndim == 0 else None
        else:
            held = {name: t.detach() for name, t in flatten(quantizer.params())}
            self.params = unflatten(quantizer.template, held.__getitem__)

    def forward(self, x: Tensor) -> Tensor:
        mask = None if self.quantized is None else self.quantized(x)
        if self.learns and self.zero is not None and is_plain(x.dtype, self.params.scale, self.scheme):
            return drop_steps(x, self.params.scale, self.zero, self.scheme, mask)
        return mix(x, self.function.apply(self.params, x, self.scheme), mask)

    def qparams(self) -> Affine:
        """What has been learned."""
        return learned_qparams(self.params, self.scheme)


class Trainable:
    """The parts of a unit's module that training needs.

    Args:
        simulated: The unit with the model's own quantizers, which stay as they are.
        rounded: The paths of the quantizers of weights that are rounded.
        learning: The paths of the quantizers of activations whose scales learn.
        quantized: Where activations are quantized; None: everywhere.
    """

    def __init__(
        self, simulated: fx.GraphModule, rounded: Collection[str], learning: Collection[str], quantized: DropRate | None
    ) -> None:
        graph, held = simulated.graph, dict[str, nn.Module]()
        sites: dict[str, tuple[FakeQuantize, Tensor]] = {}
        self.activations: dict[str, _Activation] = {}
        for node in graph.nodes:
            path = str(node.target)
            if node.op != "call_module" or kind_of(node) != "fake_quantize" or path in held:
                continue
            module: Any = simulated.get_submodule(path)
            if path in rounded:
                sites[path] = module, _laid_out(read_attr(simulated, node.all_input_nodes[0]).detach(), node)
            elif module.site.constant:
                with torch.no_grad():
                    held[path] = _Held(module(read_attr(simulated, node.all_input_nodes[0])).detach())
            elif not module.dynamic:
                made = held[path] = _Activation(module, path in learning, quantized)
                if path in learning:
                    self.activations[path] = made
        self.paths = list(sites)
        self.rounding = Rounding(list(sites.values()))
        held |= {path: _Held(weight) for path, weight in zip(sites, self.rounding.weights, strict=True)}
        self.module = _with(simulated, held)

    def scales(self) -> list[Tensor]:
        """The scales that learn."""
        return [a.params.scale for a in self.activations.values()]


def learnable(module: FakeQuantize) -> bool:
    """Whether a quantizer of activations has a scale that may learn by itself: any number, tied to no other."""
    site, scale = module.site, module.scheme.scale
    free = isinstance(site.value, Scheme) and not site.constant and not scale.dynamic and site.tie is None
    return free and not scale.power_of_two and scale.within is None


def _laid_out(weight: Tensor, quantizer: fx.Node) -> Tensor:
    # As the images in the cache lie, so that no convolution puts it into that order in each pass.
    if weight.ndim == 4 and weight.device.type == "cpu" and all(kind_of(u) == "conv" for u in quantizer.users):
        return weight.contiguous(memory_format=torch.channels_last)
    return weight


def _with(module: fx.GraphModule, other: dict[str, nn.Module]) -> fx.GraphModule:
    # The same graph with other submodules at some paths; the rest is shared.
    attributes: dict[str, Any] = {}
    for node in module.graph.nodes:
        path = str(node.target)
        if node.op == "get_attr":
            value = read_attr(module, node)
            attributes[path] = nn.Parameter(value.detach(), requires_grad=False) if isinstance(value, nn.Parameter) else value
        elif node.op == "call_module":
            attributes[path] = other.get(path) or module.get_submodule(path)
    graph = fx.Graph()
    made = fx.Graph.graph_copy(graph, module.graph, {})
    graph.output(made)
    return fx.GraphModule(attributes, graph)


_JUST = 1e-4  # a v that decides, and that any step of training may turn


def roundable(network: fx.GraphModule, places: Collection[QuantizerNode]) -> list[QuantizerNode]:
    """The weights with a rounding to learn: integers of their own scale, read by ops that weigh."""
    nodes = {n.name: n for n in network.graph.nodes}
    return [
        seat
        for seat in places
        if seat.module.site.constant
        and seat.module.site.slot == "weight"
        and isinstance(seat.module.site.value, Scheme)
        and isinstance(seat.module.scheme.format, Int)
        and all(kind_of(nodes[reader]) in LINEAR_KINDS for reader in seat.readers)
    ]


def with_adaround(model: fx.GraphModule, chosen: Collection[str]) -> None:
    """Gives the quantizers at some paths AdaRound around the function that they have, with the codes that they have.

    The record's target says so too, tensor by tensor, so that `save` and `load` know.  For transforms, on models that
    they own.

    Raises:
        SpecError: a function inside which nothing can be rounded.
    """
    by_function: dict[Function, list[str]] = {}
    nodes = {str(n.target): n for n in model.graph.nodes if n.op == "call_module"}
    for seat in quantizer_nodes(model):
        if seat.path not in chosen:
            continue
        old = seat.module
        weight = read_attr(model, nodes[seat.path].all_input_nodes[0]).detach()
        function = old.site.function if isinstance(old.site.function, AdaRound) else _around(old)
        made = FakeQuantize(evolve(old.site, function=function), weight)
        made.train(old.training)
        made.hold(old.qparams(), weight)
        start, nearest = old.export(weight)[0], made.export(weight)[0]
        v = made.get_parameter("v")
        v.copy_(torch.where(start == nearest, v, _JUST * (start - nearest).sign()))
        model.set_submodule(seat.path, made)
        by_function.setdefault(function, []).append(Context(model).path(str(nodes[seat.path].all_input_nodes[0].target)))
    tie_parameters(model)
    record = record_of(model)
    assert record is not None
    assert record.target is not None
    changes = [Override(reduce(or_, map(edit.name, paths)), "weight", function=f) for f, paths in by_function.items()]
    kept = tuple(o for o in record.target.overrides if o not in changes)
    attach(model, evolve(record, target=evolve(record.target, overrides=(*kept, *changes))))


def _around(module: FakeQuantize) -> AdaRound:
    try:
        return AdaRound(module.site.function)
    except SpecError as e:
        raise SpecError(
            where=f"reconstruct, site {module.site.name!r}",
            found=f"the function {module.site.function!r}",
            wanted="a function inside AdaRound: " + e.wanted,
            do="Use edit.weights(function=Fixed()) before, or leave the op out by select=.",
        ) from e
