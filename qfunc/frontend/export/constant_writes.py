"""Constant folding, after torch.export, of tensors that a model creates from numbers, and perhaps fills slice by slice."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from qfunc.ops.opset import BY_NAME

_FACTORIES = ("zeros", "ones", "full", "empty", "arange")
_LIKE = ("new_zeros", "new_ones", "new_full", "new_empty")


def fold_constant_writes(graph: fx.Graph, *owners: nn.Module) -> None:
    """Evaluate in-place writes into tensors that depend on no input, and the ops that depend on these tensors alone.

    Models of shifted windows create their masks like this.  Each reader gets the tensor with the writes before it.

    Args:
        graph: A graph from torch.export; its nodes record the shapes of their values.
        owners: Modules that get the constants as non-persistent buffers.
    """
    independent = _input_independent(graph)
    writes = [n for n in graph.nodes if _name(n).endswith("_") and n.args and n.args[0] in independent]
    if not writes or any(n not in independent for n in writes):
        return
    written = {_root(n) for n in writes}
    values: dict[fx.Node, Tensor] = {}
    for node in list(graph.nodes):
        if node not in independent:
            for source in [n for n in node.all_input_nodes if n in written]:
                node.replace_input_with(source, _constant(graph, node, source, values[source], owners))
            continue
        if any(n in written for n in node.all_input_nodes if _name(node) not in _LIKE):
            written.add(node)
        values[node] = _value(node, values, owners[0])
    for node in reversed(list(graph.nodes)):
        if node in independent and node in written | set(writes) and not node.users:
            graph.erase_node(node)


def fold_created_constants(graph: fx.Graph, *owners: nn.Module) -> None:
    """Evaluate ops outside of the op vocabulary that create tensors from numbers, such as linspace and eye.

    Args:
        graph: A graph from torch.export.
        owners: Modules that get the constants as non-persistent buffers.
    """
    for node in list(graph.nodes):
        name = _name(node)
        target: Any = node.target
        if not name or node.all_input_nodes or name in BY_NAME or name in _FACTORIES:
            continue
        if torch.Tag.nondeterministic_seeded in target.tags:
            continue
        kept = {k: v for k, v in node.kwargs.items() if k != "device"}
        value = target(*node.args, **kept)
        if isinstance(value, Tensor):
            node.replace_all_uses_with(_constant(graph, node, node, value, owners))
            graph.erase_node(node)


def _input_independent(graph: fx.Graph) -> set[fx.Node]:
    # Return the nodes that depend on no input, parameter or buffer: only on numbers and literal tensors of the code.
    nodes: set[fx.Node] = set()
    for node in graph.nodes:
        value = node.meta.get("val")
        sizes = value.shape if isinstance(value, Tensor) else (None,)
        if node.op == "get_attr":
            if str(node.target).rpartition(".")[2].startswith(("lifted_tensor", "_tensor_constant")):
                nodes.add(node)
        elif node.op == "call_function" and all(type(n) is int for n in sizes):
            sources = node.all_input_nodes[1:] if _name(node) in _LIKE else node.all_input_nodes
            is_factory = _name(node) in (*_FACTORIES, *_LIKE)
            if (is_factory or sources) and all(n in nodes for n in sources):
                nodes.add(node)
    return nodes


def _name(node: fx.Node) -> str:
    return str(node.target).split(".")[1] if isinstance(node.target, torch._ops.OpOverload) else ""


def _root(node: fx.Node) -> fx.Node:
    # Return the factory op of the storage that is written, through views and earlier writes.
    while node.all_input_nodes and _name(node) not in (*_FACTORIES, *_LIKE):
        node = node.all_input_nodes[0]
    return node


def _value(node: fx.Node, known: dict[fx.Node, Tensor], owner: nn.Module) -> Any:
    if node.op == "get_attr":
        holder, _, name = str(node.target).rpartition(".")
        return getattr(owner.get_submodule(holder), name).clone()
    like = torch.empty(0, dtype=node.meta["val"].dtype)
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: known.get(n, like))
    function: Any = node.target
    return function(*args, **kwargs)


def _constant(graph: fx.Graph, reader: fx.Node, source: fx.Node, value: Tensor, owners: tuple[nn.Module, ...]) -> fx.Node:
    name = f"{source.name}_constant" if reader is source else f"{source.name}_written"
    while hasattr(owners[0], name):
        name += "_"
    for owner in owners:
        owner.register_buffer(name, value.detach().clone(), persistent=False)
    with graph.inserting_before(reader):
        constant = graph.get_attr(name)
    constant.meta = dict(source.meta)
    return constant
