"""Constants of a captured graph: read, computed ahead in float64, and stored."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn

from qfunc.ops.definition import Trait
from qfunc.ops.node import has, op_of


def model_path(node: fx.Node) -> str:
    """The attribute path that a get_attr node reads."""
    return str(node.target)


def read_attr(model: nn.Module, node: fx.Node) -> Tensor:
    """The tensor that a get_attr node reads."""
    owner, _, name = str(node.target).rpartition(".")
    value: Tensor = getattr(model.get_submodule(owner), name)
    return value


def computable(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that read or compute constants alone: no op of chance, no input of the model among them.

    >>> net = fx.symbolic_trace(nn.Linear(2, 3))
    >>> sorted(node.name for node in computable(net.graph))
    ['bias', 'weight']
    """
    found: set[fx.Node] = set()
    for node in graph.nodes:
        inputs = node.all_input_nodes
        if node.op == "get_attr" or (bool(inputs) and found.issuperset(inputs) and has(node, Trait.FOLDABLE)):
            found.add(node)
    return found


def value_of(model: fx.GraphModule, node: fx.Node, known: dict[fx.Node, Tensor]) -> Tensor:
    """The value of a computable node, its floating-point constants taken as float64; `known` remembers values."""
    if node in known:
        return known[node]
    if node.op == "get_attr":
        held = read_attr(model, node).detach()
        known[node] = held.double() if held.is_floating_point() else held
    else:
        op = op_of(node)
        assert op is not None
        with torch.no_grad():
            known[node] = op.call(*fx.map_arg(node.args, lambda n: value_of(model, n, known)))
    return known[node]


def dtypes_of(model: fx.GraphModule, node: fx.Node) -> set[torch.dtype]:
    """The dtypes of the constants behind a computable node."""
    if node.op == "get_attr":
        return {read_attr(model, node).dtype}
    return {dtype for n in node.all_input_nodes for dtype in dtypes_of(model, n)}


def store(model: fx.GraphModule, before: fx.Node, path: str, value: Tensor, old: fx.Node | None, trained: bool) -> fx.Node:
    """Stores a tensor in place of the one that `old` reads, if nothing else reads that; or beside it.

    Returns:
        The node that reads it, before `before`.
    """
    owner, _, name = path.rpartition(".")
    readers = [u for n in model.graph.nodes if n.op == "get_attr" and n.target == path for u in n.users]
    if old is not None and len(readers) == 1:
        setattr(model.get_submodule(owner), name, nn.Parameter(value, requires_grad=trained))
        return old
    fresh, count = name, 0
    while getattr(model.get_submodule(owner), fresh, None) is not None:
        count += 1
        fresh = f"{name}_{count}"
    setattr(model.get_submodule(owner), fresh, nn.Parameter(value, requires_grad=trained))
    with model.graph.inserting_before(before):
        return model.graph.get_attr(f"{owner}.{fresh}".lstrip("."))
