"""Tensors that a model makes and fills part by part, from numbers alone: on the torch.export road they become constants."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

_FACTORIES = ("zeros", "ones", "full", "empty", "arange")
_LIKE = ("new_zeros", "new_ones", "new_full", "new_empty")


def fold_constant_writes(graph: fx.Graph, *owners: nn.Module) -> None:
    """Evaluates what is written in place into tensors that no input decides, and all that follows from those alone.

    So a shifted window's mask is made.  Each reader sees the tensor as it was at its turn.

    Args:
        graph: From torch.export, whose nodes tell their values' shapes.
        owners: Get the constants as buffers that are in no state_dict.
    """
    fixed = _fixed(graph)
    writes = [n for n in graph.nodes if _name(n).endswith("_") and n.args and n.args[0] in fixed]
    if not writes or any(n not in fixed for n in writes):
        return
    written = {_root(n) for n in writes}
    known: dict[fx.Node, Tensor] = {}
    for node in list(graph.nodes):
        if node not in fixed:
            for source in [n for n in node.all_input_nodes if n in written]:
                node.replace_input_with(source, _constant(graph, node, source, known[source], owners))
            continue
        if any(n in written for n in node.all_input_nodes if _name(node) not in _LIKE):
            written.add(node)
        known[node] = _value(node, known, owners[0])
    for node in reversed(list(graph.nodes)):
        if node in fixed and node in written | set(writes) and not node.users:
            graph.erase_node(node)


def _fixed(graph: fx.Graph) -> set[fx.Node]:
    # What depends on no input, parameter or buffer, but on numbers and on tensors written out in the model's code.
    found: set[fx.Node] = set()
    for node in graph.nodes:
        value = node.meta.get("val")
        sizes = value.shape if isinstance(value, Tensor) else (None,)
        if node.op == "get_attr":
            if str(node.target).rpartition(".")[2].startswith(("lifted_tensor", "_tensor_constant")):
                found.add(node)
        elif node.op == "call_function" and all(type(n) is int for n in sizes):
            sources = node.all_input_nodes[1:] if _name(node) in _LIKE else node.all_input_nodes
            made = _name(node) in (*_FACTORIES, *_LIKE)
            if (made or sources) and all(n in found for n in sources):
                found.add(node)
    return found


def _name(node: fx.Node) -> str:
    return str(node.target).split(".")[1] if isinstance(node.target, torch._ops.OpOverload) else ""


def _root(node: fx.Node) -> fx.Node:
    # Where the written storage begins: views, and writes themselves, are looked through.
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
    name = f"{source.name}_written"
    while hasattr(owners[0], name):
        name += "_"
    for owner in owners:
        owner.register_buffer(name, value.detach().clone(), persistent=False)
    with graph.inserting_before(reader):
        made = graph.get_attr(name)
    made.meta = dict(source.meta)
    return made


__all__ = ["fold_constant_writes"]
