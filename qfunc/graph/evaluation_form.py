"""The evaluation form of a model in training: no BatchNorms that train, and no formulas that compute weights."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx, nn

from qfunc.graph.constants import UniqueNames, read_attr
from qfunc.graph.module import CapturedModule, in_evaluation_mode
from qfunc.graph.record import attach, record_of
from qfunc.ops.node import attribute
from qfunc.quantizers.batch_norm import folded_bias, folded_weight, normalized, unfolded_bias, unfolded_weight
from qfunc.quantizers.fake_quantize import FakeQuantize


class TrainedWeight(NamedTuple):
    """The arguments of a weight's quantizer if a BatchNorm trains after the op: w and the node of the norm.

    `groups` is 0, or the groups of a transposed convolution.
    """

    weight: fx.Node
    norm: fx.Node
    groups: int


def trained_weight(model: fx.GraphModule, node: fx.Node) -> TrainedWeight | None:
    """Return the arguments of a weight's quantizer if a BatchNorm trains after the op, else None."""
    if node.op != "call_module" or len(node.args) == 1:
        return None
    is_quantizer = isinstance(model.get_submodule(str(node.target)), FakeQuantize)
    return TrainedWeight(*cast(tuple[fx.Node, fx.Node, int], node.args)) if is_quantizer else None


def trained_weights(model: fx.GraphModule) -> dict[fx.Node, TrainedWeight]:
    """Return the arguments of the quantizers of weights before BatchNorms that train, by node."""
    found = ((node, trained_weight(model, node)) for node in model.graph.nodes if node.op == "call_module")
    return {node: trained for node, trained in found if trained is not None}


def computed(value: Tensor, path: str) -> Tensor:
    """Return the value of a formula; in the evaluation form it is the constant at `path`.

    >>> computed(torch.ones(1), "weight_of_conv")
    tensor([1.])
    """
    return value


def evaluate(model: fx.GraphModule, node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    """Return the value of a node that is computed from constants and from the nodes in `known`, which caches values.

    Constants keep their dtypes.
    """
    pending = [node]
    while pending:  # without recursion, because chains may be long
        current = pending[-1]
        unknown = [n for n in current.all_input_nodes if n not in known]
        if current not in known and unknown:
            pending += unknown
            continue
        pending.pop()
        if current in known:
            continue
        if current.op == "get_attr":
            known[current] = read_attr(model, current).detach()
            continue
        args, kwargs = fx.map_arg((current.args, current.kwargs), known.__getitem__)
        call: Any = current.target if current.op == "call_function" else getattr(torch.Tensor, str(current.target))
        with torch.no_grad():
            known[current] = call(*args, **kwargs)
    return known[node]


def evaluation_form(model: fx.GraphModule) -> fx.GraphModule:
    """Return the model with its BatchNorms folded by their running statistics, as evaluation and the hardware compute it.

    A weight that the model computes by a formula is a constant in it.  The model does not change; the result shares its
    quantizers, and its tensors except the folded ones.  A model without such BatchNorms and formulas is returned itself.
    """
    model = _with_constant_weights(model)
    results = [n for n in model.graph.nodes if n.target is normalized]
    if not results:
        return model
    fixed, names = dict[fx.Node, tuple[str, Tensor]](), UniqueNames()
    for result in results:
        op, _, bias, _ = cast(tuple[fx.Node, ...], result.args)
        weight = _folding(attribute(op, "weight"))
        weight_node = weight.all_input_nodes[0]
        if weight_node in fixed:  # a shared module, whose BatchNorm is shared too
            continue
        path = names.fresh(str(weight_node.target))
        fixed[weight_node] = path, folded_weight(*_values(model, weight.args))
        path = path.removesuffix("weight") + "bias"
        fixed[bias] = names.fresh(path), folded_bias(*_values(model, bias.args))
    graph, env = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.set_codegen(model.graph._codegen)
    members: dict[str, Any] = {path: nn.Parameter(value.detach(), requires_grad=False) for path, value in fixed.values()}
    for node in model.graph.nodes:
        if node in fixed:
            env[node] = graph.create_node("get_attr", fixed[node][0], name=node.name)
        elif node.target in (normalized, unfolded_weight, unfolded_bias, folded_weight):
            env[node] = env[node.all_input_nodes[0]]
        elif trained_weight(model, node) is not None:
            env[node] = graph.create_node("call_module", node.target, (env[node.all_input_nodes[0]],), name=node.name)
        elif node.op != "get_attr" or isinstance(_member(model, node), Tensor):  # else a BatchNorm
            env[node] = graph.node_copy(node, env.__getitem__)
    graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))
    return _form(model, graph, members)


def trained_norms(model: nn.Module) -> list[Any]:
    """Return the BatchNorms of a model or of its submodules that train."""
    graphs = [m for m in model.modules() if isinstance(m, fx.GraphModule)]
    found = [g.get_submodule(str(n.args[1].target)) for g in graphs for n in g.graph.nodes if n.target is normalized]
    return list(dict.fromkeys(found))


def _folding(node: fx.Node) -> fx.Node:
    # The node whose arguments are (weight, norm, groups).
    return node.all_input_nodes[0] if node.target is unfolded_weight else node


def _values(model: fx.GraphModule, args: tuple[Any, ...]) -> tuple[Any, ...]:
    def value(node: fx.Node) -> Any:
        found = _member(model, node)
        return in_evaluation_mode(found) if isinstance(found, nn.Module) else found.detach()

    values: tuple[Any, ...] = fx.map_arg(args, value)
    return values


def _with_constant_weights(model: fx.GraphModule) -> fx.GraphModule:
    """Return the model with one constant in place of each formula; a model without formulas is returned itself.

    The model does not change; the result shares its modules, and its tensors except these constants.
    """
    if not any(node.target is computed for node in model.graph.nodes):
        return model
    known: dict[fx.Node, Any] = {}
    graph, env, members = fx.Graph(), dict[fx.Node, fx.Node](), dict[str, Any]()
    graph.set_codegen(model.graph._codegen)
    for node in model.graph.nodes:
        if node.target is not computed:
            env[node] = graph.node_copy(node, env.__getitem__)
            continue
        path = str(node.args[1])
        members[path] = nn.Parameter(evaluate(model, node, known), requires_grad=False)
        env[node] = graph.create_node("get_attr", path, name=node.name)
    graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))
    return _form(model, graph, members)


def _form(model: fx.GraphModule, graph: fx.Graph, members: dict[str, Any]) -> fx.GraphModule:
    """Return a model over a graph with some new members; all others are those of a model, at their paths."""
    for node in graph.nodes:
        if node.op in ("get_attr", "call_module") and str(node.target) not in members:
            members[str(node.target)] = _member(model, node)
    form = CapturedModule(members, graph)
    form.training = model.training
    record = record_of(model)
    return form if record is None else attach(form, record)


def _member(model: fx.GraphModule, node: fx.Node) -> Any:
    """Return the tensor or the module of a get_attr or call_module node."""
    return read_attr(model, node) if node.op == "get_attr" else model.get_submodule(str(node.target))
