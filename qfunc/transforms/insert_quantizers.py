"""Insert FakeQuantize nodes where a plan places sites."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import chain
from typing import Any, cast

import torch
from attrs import evolve, frozen
from torch import Tensor, fx

from qfunc.execution.observers import require_finite
from qfunc.graph.constants import read_attr
from qfunc.graph.record import NodeInfo, attach, record_of
from qfunc.graph.state_dict import write_metadata
from qfunc.numerics.qparams import Affine
from qfunc.passes.fold_batch_norm import fold_batch_norms
from qfunc.passes.pipeline import prepare
from qfunc.passes.unfold_batch_norm import TrainedBatchNorm, unfold_batch_norms
from qfunc.placement.constraints import require_legal
from qfunc.placement.place import PlacedSite, Plan, plans
from qfunc.placement.tie_parameters import tie_parameters
from qfunc.placement.unused_rules import require_used
from qfunc.quantizers.batch_norm import folded_weight, is_tiny
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.quantizers.site import Site, quantizer_path
from qfunc.specs import DerivedQParams, FixedQParams, Target
from qfunc.transforms.batch_norm import FoldBatchNorm, TrainBatchNorm

BatchNormMode = FoldBatchNorm | TrainBatchNorm


def _simulations(captured: Mapping[str, fx.GraphModule], target: Target, norms: BatchNormMode) -> dict[str, fx.GraphModule]:
    placed = placements(captured, target, norms)
    require_used(target, [p.plan for p in placed.values()], [p.before for p in placed.values()])
    return {path: simulation(each, target) for path, each in placed.items()}


@frozen(eq=False)
class Placement:
    """A folded network and what a target places in it; the network before, and its BatchNorms that are to train."""

    network: fx.GraphModule
    plan: Plan
    before: fx.GraphModule
    norms: tuple[TrainedBatchNorm, ...]


def placements(captured: Mapping[str, fx.GraphModule], target: Target, norms: BatchNormMode) -> dict[str, Placement]:
    """Captured models, which are parts of one, folded, each with what the target wants to place in it."""
    before = {path: prepare(network, target) for path, network in captured.items()}
    folded = {path: fold_batch_norms(network, target) for path, network in before.items()}
    made = dict(zip(folded, plans(list(folded.values()), target), strict=True))
    return {path: Placement(folded[path], made[path], before[path], norms.trained(folded[path], before[path])) for path in made}


def simulation(placement: Placement, target: Target) -> fx.GraphModule:
    """The network of a placement with its quantizers; the placement's own is changed.

    Raises:
        SpecError: the hardware refuses an op or a scheme.
        CalibrationError: a constant is NaN or infinite.
    """
    network = placement.network
    require_legal(placement.plan, target)
    for placed in placement.plan.placed:
        _insert(network, placed)
    unfold_batch_norms(network, placement.before, placement.norms)
    for node in network.graph.nodes:
        if node.op == "call_module" and len(node.args) == 3 and is_tiny(network.get_submodule(str(node.args[1].target))):
            _estimate_as_trained(network, node)
    tie_parameters(network)
    network.graph.lint()
    network.recompile()
    network.register_state_dict_post_hook(write_metadata)  # type: ignore[no-untyped-call]
    held = record_of(network)
    assert held is not None
    return attach(network, evolve(held, target=target, stage="quantized"))


def _insert(network: fx.GraphModule, placed: PlacedSite) -> None:
    site, tensor = placed.site, placed.tensor
    value = read_attr(network, tensor).detach() if tensor.op == "get_attr" else None
    if value is not None:
        require_finite(value, site.name, "the model's tensors")
    module = FakeQuantize(site, torch.zeros((), device=_device(network)) if value is None else value)
    record = record_of(network)
    assert record is not None
    own = record.own(site.name)
    path = quantizer_path(own, site.constant)
    network.add_submodule(path, module)
    with network.graph.inserting_after(tensor):
        node = network.graph.call_module(path, (tensor,))
    for reader in placed.readers:
        reader.replace_input_with(tensor, node)
    source = record.facts.get(tensor.name, NodeInfo(own))
    attach(network, evolve(record, facts={**record.facts, node.name: evolve(source, path=own)}))
    if isinstance(site.value, FixedQParams):
        module.hold(fixed(site.value, module))
    elif value is not None and not isinstance(site.value, DerivedQParams):
        module.hold(_estimated(site, value), value)


def _estimate_as_trained(network: fx.GraphModule, node: fx.Node) -> None:
    # Where gamma is all but 0, so is the folded weight: the scale is that of the weight as training sees it.
    module: Any = network.get_submodule(str(node.target))
    site: Site = module.site
    weight, norm, groups = cast(tuple[fx.Node, fx.Node, int], node.args)
    held, trains = read_attr(network, weight).detach(), copy.copy(network.get_submodule(str(norm.target))).train()
    value = folded_weight(held, trains, groups).detach()
    module.hold(_estimated(site, value), value)


def _estimated(site: Site, value: Tensor) -> Affine:
    state = site.estimator.update(site.estimator.init(site.scheme, value), value, site.scheme)
    found: Affine = site.estimator.finalize(state, site.scheme)
    return found


def _device(network: fx.GraphModule) -> torch.device:
    first = next((t for t in chain(network.parameters(), network.buffers()) if t.is_floating_point()), None)
    return torch.device("cpu") if first is None else first.device


def fixed(value: FixedQParams, module: FakeQuantize) -> Affine:
    """The qparams that the hardware dictates."""
    scale = torch.full(module.held, float(value.scale))
    return Affine(scale, torch.full_like(scale, value.zero_point))
