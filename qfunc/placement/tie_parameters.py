"""What sites have in common while they train: the scales of tied sites, the products that biases take."""

from __future__ import annotations

from typing import Any

from torch import fx

from qfunc.graph.evaluation_form import evaluation_form
from qfunc.graph.sites import QuantizerNode, quantizer_nodes
from qfunc.placement.derived_scales import sources
from qfunc.quantizers.params import flatten


def tie_parameters(model: fx.GraphModule) -> None:
    """Lets derived sites multiply the scales of others as they are, and tied sites hold the same parameters.

    For transforms, on models that they own.
    """
    for node in model.graph.nodes:
        if node.op == "call_module" and len(node.args) == 3:  # a weight before it is folded, its BatchNorm, groups
            module: Any = model.get_submodule(str(node.target))
            module.follow(model.get_submodule(str(node.args[1].target)), node.args[2])
    model = evaluation_form(model)
    places = quantizer_nodes(model)
    modules = {s.path: s.module for s in places}
    first: dict[str, QuantizerNode] = {}
    for seat in places:
        seat.module.of = tuple(modules[path] for path in sources(model, seat).values())
        site = seat.module.site
        leader = first.setdefault(site.tie, seat) if site.tie else seat
        if leader is not seat and _alike(leader, seat):
            _share(leader, seat)


def _alike(a: QuantizerNode, b: QuantizerNode) -> bool:
    one, other = a.module.site, b.module.site
    static = not (a.module.dynamic or b.module.dynamic or a.module.by_channel or b.module.by_channel)
    return static and (one.scheme, one.function) == (other.scheme, other.function)


def _share(leader: QuantizerNode, seat: QuantizerNode) -> None:
    held = dict(flatten(leader.module.own()))
    for name, tensor in held.items():
        own: dict[str, Any] = seat.module._parameters if name in seat.module._parameters else seat.module._buffers
        own[name] = tensor


__all__ = ["tie_parameters"]
