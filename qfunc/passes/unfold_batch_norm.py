"""Insert trainable BatchNorms, by the arithmetic of `batch_norm`, into a folded graph, and remove them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Container
from typing import Any

from attrs import evolve, frozen
from torch import Tensor, fx, nn

from qfunc.graph.channel_affine import ChannelAffines
from qfunc.graph.data_movement import reads_values, value_readers
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
    """An op with a folded BatchNorm: its name, and the paths of the BatchNorm, the weight and the bias before folding."""

    op: str
    norm: str
    weight: str
    bias: str | None
    groups: int


def trained_batch_norms(folded: fx.GraphModule, before: fx.GraphModule) -> tuple[TrainedBatchNorm, ...]:
    """Return the BatchNorms of `before` that can train in a folded network.

    A BatchNorm stays folded if it is not a leaf of torch.nn, if its op has folded another op too, or if one of its calls
    cannot train.
    """
    ops, found, norms = {n.name: n for n in folded.graph.nodes}, [], ChannelAffines(before)
    for node in before.graph.nodes:
        norm = norms.at(node) if node.op == "call_module" else None
        old = node.all_input_nodes[0] if norm is not None else None
        linear = linear_op(before, old) if old is not None else None
        new = ops.get(old.name) if old is not None and linear is not None and len(value_readers(old)) == 1 else None
        if linear is None or old is None or new is None or node.name in ops:
            continue
        if _names(new.args[:1], ops) == _names(old.args[:1], ops) and _readers(new, ops) == _readers(node, ops):
            bias, groups = attribute(old, "bias"), linear.groups if linear.kind == "conv_transpose" else 0
            paths = str(attribute(old, "weight").target), None if bias is None else str(bias.target)
            found.append(TrainedBatchNorm(old.name, str(node.target), *paths, groups))
    calls = Counter(str(node.target) for node in before.graph.nodes if node.op == "call_module")
    while True:  # ops that share a weight or a BatchNorm train all or none
        names, trained = {norm.op for norm in found}, Counter(norm.norm for norm in found)
        whole = [norm for norm in found if trained[norm.norm] == calls[norm.norm]]
        kept = [norm for norm in whole if all(reader.name in names for reader in attribute(ops[norm.op], "weight").users)]
        if len(kept) == len(found):
            return tuple(kept)
        found = kept


def _readers(tensor: fx.Node, ops: Container[str]) -> list[str]:
    return _names((user for user in tensor.users if reads_values(user, tensor)), ops)


def _names(nodes: Any, ops: Container[str]) -> list[str]:
    # A folded BatchNorm has the name of the op before it.
    return sorted(n.name if n.name in ops else n.all_input_nodes[0].name for n in nodes)


def unfold_batch_norms(network: fx.GraphModule, before: fx.GraphModule, norms: tuple[TrainedBatchNorm, ...]) -> fx.GraphModule:
    """Insert trainable BatchNorms into a folded network with quantizers, in place, and return it.

    Ops keep the names that they have in the folded network; tensors have the names of the network before.
    """
    ops = {n.name: n for n in network.graph.nodes}
    folded = [(norm, ops[norm.op], *_constants(ops[norm.op])) for norm in norms]
    for path in {str(node.target) for _, _, *constants in folded for node in constants}:
        owner, _, name = path.rpartition(".")
        delattr(network.get_submodule(owner), name)
    for trained in norms:
        for tensor in (trained.weight, trained.bias):
            _restore(network, before, tensor)
        owner, _, name = trained.norm.rpartition(".")
        if not hasattr(getattr(ensure_submodule(network, owner), name, None), "first_batch"):  # else another op has restored it
            module: Any = copy.deepcopy(before.get_submodule(trained.norm))
            module = SyncBatchNormStatistics(module) if isinstance(module, nn.SyncBatchNorm) else module
            begin(module)
            setattr(ensure_submodule(network, owner), name, module)
    results = {_train(network, norm, op, weight, bias).name: op.name for norm, op, weight, bias in folded}
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
    if not isinstance(getattr(ensure_submodule(network, owner), name, None), Tensor):  # else another op has restored it
        tensor = before.get_parameter(path)
        copied = nn.Parameter(tensor.detach().clone(), requires_grad=tensor.requires_grad)
        setattr(ensure_submodule(network, owner), name, copied)


def _train(network: fx.GraphModule, trained: TrainedBatchNorm, op: fx.Node, weight: fx.Node, bias: fx.Node) -> fx.Node:
    spec, graph = op_of(op), network.graph
    assert spec is not None
    quantized_bias = attribute(op, "bias")
    with graph.inserting_before(next(iter(graph.nodes))):
        norm = graph.get_attr(trained.norm)
        original_bias = None if trained.bias is None else graph.get_attr(trained.bias)
    weight.target = trained.weight
    bias.op, bias.target, bias.args = "call_function", folded_bias, (original_bias, norm)  # its name stays
    new = attribute(op, "weight")
    if new is weight:
        with graph.inserting_before(op):
            new = _float_weight(graph, (weight, norm, trained.groups))
    else:
        new.args = (weight, norm, trained.groups)
    with graph.inserting_before(op):
        shift = graph.call_function(unfolded_bias, (quantized_bias, original_bias, norm))
    new_args = {"weight": new, "bias": shift}
    op.args = tuple(new_args.get(name, a) for name, a in zip(spec.parameters, op.args, strict=True))
    with graph.inserting_after(op):
        result = graph.call_function(normalized, (op, norm, bias, quantized_bias))
    op.replace_all_uses_with(result, delete_user_cb=lambda user: user is not result)
    return result


def replacement(model: fx.GraphModule, quantizer: fx.Node) -> fx.Node:
    """Return the node that replaces a quantizer for its readers."""
    trained = trained_weight(model, quantizer)
    if trained is None:
        return quantizer.all_input_nodes[0]
    with model.graph.inserting_before(quantizer):
        return _float_weight(model.graph, trained)


def _float_weight(graph: fx.Graph, args: tuple[Any, ...]) -> fx.Node:
    return graph.call_function(unfolded_weight, (graph.call_function(folded_weight, args), *args))
