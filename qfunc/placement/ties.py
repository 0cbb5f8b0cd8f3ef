"""Tied tensors: the algorithm that finds and trains them, and the parameters that they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve
from torch import fx

from qfunc.graph.evaluation_form import trained_weights
from qfunc.graph.sites import QuantizerNode
from qfunc.graph.view import QuantizedModel
from qfunc.placement.derived_scales import derivations
from qfunc.quantizers.params import flatten
from qfunc.quantizers.site import Site
from qfunc.specs import Scheme


def with_shared_algorithms(sites: Sequence[Site]) -> list[Site]:
    """Return the sites in the order of the graph, those of a tie with the estimator and function of its leader.

    Tied tensors hold the same parameters, and two functions have none in common.
    """
    leaders = [leader_of(site, sites) for site in sites]
    pairs = zip(sites, leaders, strict=True)
    return [s if s is leader else evolve(s, estimator=leader.estimator, function=leader.function) for s, leader in pairs]


def leader_of(site: Site, sites: Sequence[Site]) -> Site:
    """Return the site whose estimator and function a site takes.

    It is the first of a tie that is led by its "input", else the last, its output; the site itself if it has no tie, if
    the hardware dictates its scale, or if the leader has another scheme.
    """
    if site.tie is None:
        return site
    members = [s for s in sites if s.tie == site.tie]
    leader = members[0 if site.leader == "input" else -1]
    return leader if isinstance(site.value, Scheme) and site.value == leader.value else site


def tie_parameters(model: fx.GraphModule) -> None:
    """Let derived sites multiply the current scales of others, and let tied sites hold the same parameters.

    It changes the model: only for transforms, on models of their own.
    """
    for node, trained in trained_weights(model).items():
        module: Any = model.get_submodule(str(node.target))
        module.follow(model.get_submodule(str(trained.norm.target)), trained.groups)
    view = QuantizedModel(model)
    modules, factors = {s.path: s.module for s in view.quantizers}, derivations(view)
    first: dict[str, QuantizerNode] = {}
    for seat in view.quantizers:
        seat.module.of = tuple(modules[path] for path in factors.get(seat.path, {}).values())
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


__all__ = ["leader_of", "tie_parameters", "with_shared_algorithms"]
