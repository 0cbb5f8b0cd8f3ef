"""Tied tensors: the algorithm that finds and trains their qparams, and the parameters that they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve
from torch import fx

from qfunc.graph.evaluation_form import trained_weights
from qfunc.graph.sites import QuantizerNode
from qfunc.graph.view import QuantizedModel
from qfunc.placement.derived_scales import derivations
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.quantizers.params import flatten
from qfunc.quantizers.site import Site
from qfunc.specs import Scheme


def with_shared_algorithms(sites: Sequence[Site]) -> list[Site]:
    """Return sites, in the order of the graph; tied sites get the estimator and function of their leader.

    Tied tensors share parameters, and two different functions have no parameters in common.
    """
    leaders = [leader_of(site, sites) for site in sites]
    pairs = zip(sites, leaders, strict=True)
    return [s if s is leader else evolve(s, estimator=leader.estimator, function=leader.function) for s, leader in pairs]


def leader_of(site: Site, sites: Sequence[Site]) -> Site:
    """Return the site that gives a site its estimator and function.

    If the tie's leader is "input", this is the first site of the tie, else the last, its output.  It is the site itself
    if it has no tie, if the hardware dictates its scale, or if the leader has another scheme.
    """
    if site.tie is None:
        return site
    members = [s for s in sites if s.tie == site.tie]
    leader = members[0 if site.leader == "input" else -1]
    return leader if isinstance(site.value, Scheme) and site.value == leader.value else site


def tie_parameters(model: fx.GraphModule) -> None:
    """Make derived sites multiply the current scales of others, and make tied sites share parameters, in place.

    Only for transforms that own the model.
    """
    for node, trained in trained_weights(model).items():
        module: Any = model.get_submodule(str(node.target))
        module.follow(model.get_submodule(str(trained.norm.target)), trained.groups)
    view = QuantizedModel(model)
    modules, factors = {q.path: q.module for q in view.quantizers}, derivations(view)
    first: dict[str, QuantizerNode] = {}
    for quantizer in view.quantizers:
        quantizer.module.factors = tuple(modules[path] for path in factors.get(quantizer.path, {}).values())
        site = quantizer.module.site
        leader = first.setdefault(site.tie, quantizer) if site.tie else quantizer
        if leader is not quantizer and _can_share(leader.module, quantizer.module):
            _share(leader.module, quantizer.module)


def _can_share(a: FakeQuantize, b: FakeQuantize) -> bool:
    static = not (a.dynamic or b.dynamic or a.by_channel or b.by_channel)
    return static and (a.site.scheme, a.site.function) == (b.site.scheme, b.site.function)


def _share(leader: FakeQuantize, module: FakeQuantize) -> None:
    for name, tensor in flatten(leader.stored_params()):
        tensors: dict[str, Any] = module._parameters if name in module._parameters else module._buffers
        tensors[name] = tensor


__all__ = ["leader_of", "tie_parameters", "with_shared_algorithms"]
