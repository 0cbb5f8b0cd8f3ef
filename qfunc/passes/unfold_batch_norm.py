"""Models whose BatchNorms train: the arithmetic of `batch_norm` put into a folded graph, and taken out again."""

from __future__ import annotations

import copy
from collections.abc import Container
from typing import Any

from attrs import evolve, frozen
from torch import Tensor, fx, nn

from qfunc.graph.channel_affine import ChannelAffines
from qfunc.graph.evaluation_form import trained_weight
from qfunc.graph.linear_op import linear_op
from qfunc.graph.module import ensure_submodule
from qfunc.graph.record import attach, record_of
from qfunc.ops.node import attribute, kind_of, op_of
from qfunc.quantizers.batch_norm import folded_bias, folded_weight, normalized, unfolded_bias, unfolded_weight
from qfunc.quantizers.frozen_batch_norm import begin
from qfunc.quantizers.sync_batch_norm import SyncBatchNormStatistics


@frozen
class TrainedBatchNorm:
    """An op into which a BatchNorm was folded, and what it was before: all by name or path."""

    op: str
    norm: str
    weight: str
    bias: str | None
    groups: int


def trained_batch_norms(folded: fx.GraphModule, before: fx.GraphModule) -> tuple[TrainedBatchNorm, ...]:
    """The BatchNorms of `before` that can train in a folded network.

    The others stay folded: those that are no leaf of torch.nn, and those of ops that took in something else too.
    """
    ops, found, norms = {n.name: n for n in folded.graph.nodes}, [], ChannelAffines(before)
    for node in before.graph.nodes:
        norm = norms.at(node) if node.op == "call_module" else None
        old = node.all_input_nodes[0] if norm is not None else None
        held = linear_op(before, old) if old is not None else None
        new = ops.get(old.name) if old is not None and held is not None and len(old.users) == 1 else None
        if held is None or old is None or new is None or node.name in ops:
            continue
        if _names(new.args[:1], ops) == _names(old.args[:1], ops) and _names(new.users, ops) == _names(node.users, ops):
            bias, groups = attribute(old, "bias"), held.groups if held.kind == "conv_transpose" else 0
            paths = str(attribute(old, "weight").target), None if bias is None else str(bias.target)
            found.append(TrainedBatchNorm(old.name, str(node.target), *paths, groups))
    trained = {each.op for each in found}
    # Ops that share a weight train all or none.
    return tuple(e for e in found if all(reader.name in trained for reader in attribute(ops[e.op], "weight").users))


def _names(nodes: Any, ops: Container[str]) -> list[str]:
    # Of a BatchNorm that was folded the name is that of the op before it.
    return sorted(n.name if n.name in ops else n.all_input_nodes[0].name for n in nodes)


def unfold_batch_norms(network: fx.GraphModule, before: fx.GraphModule, norms: tuple[TrainedBatchNorm, ...]) -> fx.GraphModule:
    """Changes a folded network, with its quantizers, so that these BatchNorms train.

    Ops keep the names that they have in the folded network; tensors have those of the network before.
    """
    ops = {n.name: n for n in network.graph.nodes}
    folded = [(each, ops[each.op], *_constants(ops[each.op])) for each in norms]
    for taken in {str(node.target) for _, _, *constants in folded for node in constants}:
        owner, _, name = taken.rpartition(".")
        delattr(network.get_submodule(owner), name)
    for each in norms:
        for path in (each.weight, each.bias):
            _restore(network, before, path)
        owner, _, name = each.norm.rpartition(".")
        if not hasattr(
            getattr(ensure_submodule(network, owner), name, None), "first_batch"
        ):  # else another op has brought it back
            norm: Any = copy.deepcopy(before.get_submodule(each.norm))
            norm = SyncBatchNormStatistics(norm) if isinstance(norm, nn.SyncBatchNorm) else norm
            begin(norm)
            setattr(ensure_submodule(network, owner), name, norm)
    results = {_train(network, each, op, weight, bias).name: op.name for each, op, weight, bias in folded}
    record = record_of(network)
    if record is not None:
        facts = {result: record.facts[op] for result, op in results.items() if op in record.facts}
        attach(network, evolve(record, facts={**record.facts, **facts}))
    return network


def _constants(op: fx.Node) -> tuple[fx.Node, fx.Node]:
    # The nodes that read the folded weight and bias.
    nodes = (attribute(op, slot) for slot in ("weight", "bias"))
    weight, bias = (n.all_input_nodes[0] if kind_of(n) == "fake_quantize" else n for n in nodes)
    return weight, bias


def _restore(network: fx.GraphModule, before: fx.GraphModule, path: str | None) -> None:
    if path is None:
        return
    owner, _, name = path.rpartition(".")
    if not isinstance(getattr(ensure_submodule(network, owner), name, None), Tensor):  # else another op has brought it back
        held = before.get_parameter(path)
        setattr(ensure_submodule(network, owner), name, nn.Parameter(held.detach().clone(), requires_grad=held.requires_grad))


def _train(network: fx.GraphModule, each: TrainedBatchNorm, op: fx.Node, weight: fx.Node, bias: fx.Node) -> fx.Node:
    spec, graph = op_of(op), network.graph
    assert spec is not None
    quantized_bias = attribute(op, "bias")
    with graph.inserting_before(next(iter(graph.nodes))):
        norm = graph.get_attr(each.norm)
        given = None if each.bias is None else graph.get_attr(each.bias)
    weight.target = each.weight
    bias.op, bias.target, bias.args = "call_function", folded_bias, (given, norm)  # its name stays
    new = attribute(op, "weight")
    if new is weight:
        with graph.inserting_before(op):
            new = _plain(graph, (weight, norm, each.groups))
    else:
        new.args = (weight, norm, each.groups)
    with graph.inserting_before(op):
        shift = graph.call_function(unfolded_bias, (quantized_bias, given, norm))
    new_args = {"weight": new, "bias": shift}
    op.args = tuple(new_args.get(name, a) for name, a in zip(spec.parameters, op.args, strict=True))
    with graph.inserting_after(op):
        result = graph.call_function(normalized, (op, norm, bias, quantized_bias))
    op.replace_all_uses_with(result, delete_user_cb=lambda user: user is not result)
    return result


def unquantized(model: fx.GraphModule, quantizer: fx.Node) -> fx.Node:
    """Return the node that the readers of a quantizer read once it is removed."""
    trained = trained_weight(model, quantizer)
    if trained is None:
        return quantizer.all_input_nodes[0]
    with model.graph.inserting_before(quantizer):
        return _plain(model.graph, trained)


def _plain(graph: fx.Graph, args: tuple[Any, ...]) -> fx.Node:
    return graph.call_function(unfolded_weight, (graph.call_function(folded_weight, args), *args))


__all__ = ["TrainedBatchNorm", "trained_batch_norms", "unfold_batch_norms", "unquantized"]
