"""Insert the quantizers that a plan places into its graph."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor, fx, nn

from qfunc.execution.observers import require_finite
from qfunc.graph.constants import read_attr
from qfunc.graph.copying import sharing_parameters
from qfunc.graph.evaluation_form import TrainedWeight, trained_weights
from qfunc.graph.record import NodeInfo, Record, attach, record_of
from qfunc.graph.state_dict import write_metadata
from qfunc.numerics.qparams import Affine
from qfunc.ops.node import kind_of
from qfunc.passes.fold_batch_norm import fold_into
from qfunc.passes.parameters.fold_constant_operands import fold_constant_operands
from qfunc.passes.parameters.insert_weight_formulas import WeightFormula, insert_formulas
from qfunc.passes.pipeline import prepare
from qfunc.passes.unfold_batch_norm import TrainedBatchNorm, unfold_batch_norms
from qfunc.placement.legality.constraints import require_legal
from qfunc.placement.place import PlacedSite, Plan, plans
from qfunc.placement.ties import tie_parameters
from qfunc.placement.without_effect.unused_rules import require_used
from qfunc.quantizers.batch_norm import folded_weight, is_tiny
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.quantizers.lost_negatives import require_no_negatives
from qfunc.quantizers.site import Site, quantizer_path
from qfunc.specs import DerivedQParams, FixedQParams, Target
from qfunc.transforms.batch_norm import FoldBatchNorm, TrainBatchNorm, require_no_trained_steps

BatchNormMode = FoldBatchNorm | TrainBatchNorm


def _simulations(captured: Mapping[str, fx.GraphModule], target: Target, norms: BatchNormMode) -> dict[str, fx.GraphModule]:
    placed = placements(captured, target, norms)
    require_used(target, [p.plan for p in placed.values()], [p.before for p in placed.values()])
    return {path: simulation(each, target) for path, each in placed.items()}


@frozen(eq=False)
class Placement:
    """A folded network and its plan, the network before folding, its BatchNorms that train, and its weight formulas."""

    network: fx.GraphModule
    plan: Plan
    before: fx.GraphModule
    norms: tuple[TrainedBatchNorm, ...]
    formulas: tuple[WeightFormula, ...]


def placements(captured: Mapping[str, fx.GraphModule], target: Target, norms: BatchNormMode) -> dict[str, Placement]:
    """Fold the captured parts of one model, and return the plan of quantizers of each."""
    prepared = {path: prepare(network, target) for path, network in captured.items()}
    before = {path: each.network for path, each in prepared.items()}
    # The networks before folding are read only, so that both may have one memory.
    folded = {path: fold_into(sharing_parameters(n), target, norms.training(n)) for path, n in before.items()}
    if isinstance(norms, TrainBatchNorm):
        for path, old in before.items():
            require_no_trained_steps(folded[path], old, target)
    formulas = {path: prepared[path].formulas + fold_constant_operands(network) for path, network in folded.items()}
    made = zip(folded, plans(list(folded.values()), target), strict=True)
    return {
        path: Placement(folded[path], plan, old := before[path], norms.trained(folded[path], old), formulas[path])
        for path, plan in made
    }


def simulation(placement: Placement, target: Target) -> fx.GraphModule:
    """Insert the quantizers of a placement into its network, in place, and return the network.

    Raises:
        SpecError: the hardware refuses an op or a scheme.
        CalibrationError: a constant is NaN or infinite.
    """
    network = placement.network
    require_legal(placement.plan, target)
    record, folded = record_of(network), _folded_norms(placement)
    assert record is not None
    inserted = _insert_all(network, placement.plan.placed, record)
    attach(network, evolve(record, facts={**record.facts, **inserted}))
    unfold_batch_norms(network, placement.before, placement.norms)
    for node, trained in trained_weights(network).items():
        if is_tiny(network.get_submodule(str(trained.norm.target))):
            _estimate_as_trained(network, node, trained)
    insert_formulas(network, placement.formulas)
    _delete_unused_modules(network)  # not before: formulas read tensors that no node of the graph reads
    tie_parameters(network)
    network.graph.lint()
    network.recompile()
    network.register_state_dict_post_hook(write_metadata)  # type: ignore[no-untyped-call]
    record = record_of(network)
    assert record is not None
    return attach(network, evolve(record, target=target, stage="quantized", folded=folded))


def _delete_unused_modules(network: fx.GraphModule) -> None:
    # As `delete_all_unused_submodules` of torch, which takes the square of the number of modules.
    called = {str(n.target) for n in network.graph.nodes if n.op == "call_module"}
    read = {str(n.target) for n in network.graph.nodes if n.op == "get_attr"}
    parents = {".".join(parts[:i]) for path in called | read if (parts := path.split(".")) for i in range(1, len(parts))}

    def delete(module: nn.Module, path: str) -> None:
        for name, child in list(module._modules.items()):
            if child is None or child in seen:
                continue
            inner = f"{path}{name}"
            if inner not in called and (inner in parents or inner in read):
                seen.add(child)
                delete(child, f"{inner}.")
                continue
            seen.update(child.modules())
            if inner not in called:
                delattr(module, name)

    seen: set[nn.Module] = set()
    delete(network, "")


def _folded_norms(placement: Placement) -> int:
    # Return the number of BatchNorms that are folded and do not train.
    names, trained = {node.name for node in placement.network.graph.nodes}, {norm.norm for norm in placement.norms}
    gone = [n for n in placement.before.graph.nodes if n.op == "call_module" and n.name not in names]
    norms = [n for n in gone if kind_of(n) == "batch_norm"]
    return sum(str(n.target) not in trained for n in norms)


def _insert_all(network: fx.GraphModule, placed: Sequence[PlacedSite], record: Record) -> dict[str, NodeInfo]:
    # Return the origins of the new nodes by name.  Each reader is changed once, when its last quantizer is inserted, because
    # torch copies all inputs of a node to replace one.
    last = {reader: site for site in placed for reader in site.readers}
    facts, sources = dict[str, NodeInfo](), dict[fx.Node, dict[fx.Node, fx.Node]]()
    for site in placed:
        node, facts[node.name] = _insert(network, site, record)
        for reader in site.readers:
            sources.setdefault(reader, {}).setdefault(site.tensor, node)
            if last[reader] is site:
                _replace_inputs(reader, sources[reader])
    return facts


def _replace_inputs(reader: fx.Node, sources: Mapping[fx.Node, fx.Node]) -> None:
    def replaced(node: fx.Node) -> fx.Node:
        return sources.get(node, node)

    reader.args, reader.kwargs = fx.map_arg(reader.args, replaced), fx.map_arg(reader.kwargs, replaced)


def _insert(network: fx.GraphModule, placed: PlacedSite, record: Record) -> tuple[fx.Node, NodeInfo]:
    # Return the new node, and its origin.
    site, tensor = placed.site, placed.tensor
    value = read_attr(network, tensor).detach() if tensor.op == "get_attr" else None
    if value is not None:
        require_finite(value, site.name, "the model's tensors")
        require_no_negatives(site, value)
    module = FakeQuantize(site, torch.zeros((), device=_device(network)) if value is None else value)
    name = record.inner_path(site.name) if record.within else site.name
    path = quantizer_path(name, site.constant)
    network.add_submodule(path, module)
    with network.graph.inserting_after(tensor):
        node = network.graph.call_module(path, (tensor,))
    if isinstance(site.value, FixedQParams):
        module.set_qparams(fixed(site.value, module))
    elif value is not None and not isinstance(site.value, DerivedQParams):
        module.set_qparams(estimate_qparams(site, value), value)
    return node, evolve(record.facts.get(tensor.name, NodeInfo(name)), path=name)


def _estimate_as_trained(network: fx.GraphModule, node: fx.Node, trained: TrainedWeight) -> None:
    # Where gamma is almost 0, the folded weight is almost 0, too; estimate the scale of the weight in training instead.
    module: Any = network.get_submodule(str(node.target))
    site: Site = module.site
    norm = copy.copy(network.get_submodule(str(trained.norm.target))).train()
    value = folded_weight(read_attr(network, trained.weight).detach(), norm, trained.groups).detach()
    module.set_qparams(estimate_qparams(site, value), value)


def estimate_qparams(site: Site, value: Tensor) -> Affine:
    """Return the qparams that the estimator of a site finds for a constant."""
    state = site.estimator.update(site.estimator.init(site.scheme, value), value, site.scheme)
    found: Affine = site.estimator.finalize(state, site.scheme)
    return found


def _device(network: fx.GraphModule) -> torch.device:
    first = next((t for t in chain(network.parameters(), network.buffers()) if t.is_floating_point()), None)
    return torch.device("cpu") if first is None else first.device


def fixed(value: FixedQParams, module: FakeQuantize) -> Affine:
    """Return the qparams that the hardware dictates."""
    scale = torch.full(module.scale_shape, float(value.scale))
    return Affine(scale, torch.full_like(scale, value.zero_point))
