"""Sites whose qparams depend on other sites: tied tensors, which share them, and biases, whose scale is a product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import evolve
from torch import fx

from qfunc.graph.evaluation_form import trained_weights
from qfunc.graph.selectors import Context
from qfunc.graph.sites import QuantizerNode
from qfunc.graph.view import QuantizedModel
from qfunc.numerics.qparams import Affine
from qfunc.numerics.scales import product
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.quantizers.params import flatten
from qfunc.quantizers.site import Site
from qfunc.specs import DerivedQParams, Scheme


def with_shared_algorithms(sites: Sequence[Site]) -> list[Site]:
    """Return sites, in the order of the graph; tied sites get the estimator and function of their leader.

    Tied tensors share parameters, and two different functions have no parameters in common.
    """
    members = tie_members(sites)
    leaders = [leader_of(site, members) for site in sites]
    pairs = zip(sites, leaders, strict=True)
    return [s if s is leader else evolve(s, estimator=leader.estimator, function=leader.function) for s, leader in pairs]


def tie_members(sites: Sequence[Site]) -> dict[str | None, list[Site]]:
    """Return sites by the names of their ties, in their order."""
    members: dict[str | None, list[Site]] = {}
    for site in sites:
        members.setdefault(site.tie, []).append(site)
    return members


def leader_of(site: Site, members: Mapping[str | None, Sequence[Site]]) -> Site:
    """Return the site that gives a site its estimator and function, of those of its tie in `members`.

    If the tie's leader is "input", this is the first site of the tie, else the last, its output.  It is the site itself
    if it has no tie, if the hardware dictates its scale, or if the leader has another scheme.
    """
    if site.tie is None:
        return site
    leader = members[site.tie][0 if site.leader == "input" else -1]
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
    for name, _ in flatten(leader.stored_params()):
        tensors: dict[str, Any] = module._parameters if name in module._parameters else module._buffers
        tensors[name] = getattr(leader, name)


def derived_qparams(view: QuantizedModel, qparams: dict[str, Affine]) -> dict[str, Affine]:
    """Return the qparams of every derived site by path: s = float32(s_input * s_weight), z = 0, one for each channel.

    Args:
        view: The model.
        qparams: The qparams of the other sites, by path.
    """
    channels = {q.path: q.module.scale_shape[0] for q in view.quantizers if _is_derived(q)}
    derived = {}
    for path, factors in derivations(view).items():
        scale = product([qparams[factor].scale for factor in factors.values()], channels[path])
        derived[path] = Affine(scale, torch.zeros_like(scale))
    return derived


def derivations(view: QuantizedModel) -> dict[str, dict[str, str]]:
    """Return for each derived site, by path, the paths of the sites whose scales it multiplies, by slot."""
    derived = [q for q in view.quantizers if _is_derived(q)]
    if not derived:
        return {}
    calls = {str(n.target): n for n in view.evaluation_form.graph.nodes if n.op == "call_module"}
    quantizers = {calls[quantizer.path] for quantizer in view.quantizers}
    target = view.record.target
    context, factors = Context(view.evaluation_form, () if target is None else target.ops), {}
    for quantizer in derived:
        value = quantizer.module.site.value
        operands = dict(reversed(context.slots(next(iter(calls[quantizer.path].users)))))
        assert isinstance(value, DerivedQParams)
        factors[quantizer.path] = {slot: _quantizer_of(operands[slot], quantizers, context) for slot in value.of}
    return factors


def _is_derived(quantizer: QuantizerNode) -> bool:
    return isinstance(quantizer.module.site.value, DerivedQParams)


def _quantizer_of(tensor: fx.Node, quantizers: set[fx.Node], context: Context) -> str:
    while tensor not in quantizers:  # an op that only moves codes
        tensor = next(n for slot, n in context.slots(tensor) if slot == "input")
    return str(tensor.target)
