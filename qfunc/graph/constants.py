"""Constants of a captured graph: read them, fold them in float64 and store new ones."""

from __future__ import annotations

from functools import cached_property
from itertools import count

import torch
from torch import Tensor, fx, nn

from qfunc.graph.record import path_of
from qfunc.ops.definition import Trait
from qfunc.ops.node import has, op_of


def model_path(node: fx.Node) -> str:
    """Return the attribute path that a get_attr node reads."""
    return str(node.target)


def read_attr(model: nn.Module, node: fx.Node) -> Tensor:
    """Return the tensor that a get_attr node reads."""
    owner, _, name = str(node.target).rpartition(".")
    value: Tensor = getattr(model.get_submodule(owner), name)
    return value


def parameter_shapes(model: fx.GraphModule) -> dict[str, list[int]]:
    """Return the shapes of the parameters that a graph reads, by their names.

    >>> parameter_shapes(fx.symbolic_trace(nn.Linear(2, 3)))
    {'weight': [3, 2], 'bias': [3]}
    """
    read = dict.fromkeys(str(n.target) for n in model.graph.nodes if n.op == "get_attr")
    found = dict(model.named_parameters(remove_duplicate=False))
    return {name: list(found[name].shape) for name in read if name in found}


def computable(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that depend on constants alone: not on inputs of the model or on random ops.

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
    """Return the value of a computable node, with floating-point constants in float64; `known` caches values."""
    pending = [node]
    while pending:  # without recursion, because chains may be long
        current = pending[-1]
        unknown = [n for n in current.all_input_nodes if n not in known]
        if current not in known and unknown:
            pending += unknown
            continue
        pending.pop()
        if current not in known:
            known[current] = _computed(model, current, known)
    return known[node]


def _computed(model: fx.GraphModule, node: fx.Node, known: dict[fx.Node, Tensor]) -> Tensor:
    if node.op == "get_attr":
        tensor = read_attr(model, node).detach()
        return tensor.double() if tensor.is_floating_point() else tensor
    op = op_of(node)
    assert op is not None
    with torch.no_grad():
        value: Tensor = op.call(*fx.map_arg(node.args, known.__getitem__))
    return value


def dtypes_of(model: fx.GraphModule, node: fx.Node) -> set[torch.dtype]:
    """Return the dtypes of the constants from which a node is computed."""
    pending, seen = [node], {node}
    while pending:
        inputs = [n for n in pending.pop().all_input_nodes if n not in seen]
        seen.update(inputs)
        pending += inputs
    return {read_attr(model, n).dtype for n in seen if n.op == "get_attr"}


class AttributeNodes:
    """The get_attr nodes of a graph by path; the graph is read once, at the first use."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph

    @cached_property
    def _by_path(self) -> dict[str, list[fx.Node]]:
        found: dict[str, list[fx.Node]] = {}
        for node in self.graph.nodes:
            if node.op == "get_attr":
                found.setdefault(str(node.target), []).append(node)
        return found

    def users(self, node: fx.Node) -> list[fx.Node]:
        """Return the users of all nodes with the path of a node; erased nodes have none."""
        others = (n for n in self._by_path.get(str(node.target), ()) if n is not node)
        return [user for n in (node, *others) for user in n.users]


def replace(
    model: fx.GraphModule, before: fx.Node, old: fx.Node, value: Tensor, trained: bool, nodes: AttributeNodes
) -> fx.Node:
    """Replace the tensor that `old` reads if it has no other reader; otherwise store a new one.

    The layer of a tied parameter gets its own under the name that it has there.

    Returns:
        The node that reads the tensor: `old`, or a new node inserted before `before`.
    """
    path = str(old.target)
    if len(nodes.users(old)) != 1:
        named = dict(model.named_parameters(remove_duplicate=False))
        own = f"{path_of(model, before)}.{path.rpartition('.')[2]}"
        if own == path or path not in named or named.get(own) is not named[path]:
            return store(model, before, path, value, trained)
        _set(model, own, value, trained)
        with model.graph.inserting_before(before):
            return model.graph.get_attr(own)
    _set(model, path, value, trained)
    return old


def _set(model: fx.GraphModule, path: str, value: Tensor, trained: bool) -> None:
    owner, _, name = path.rpartition(".")
    setattr(model.get_submodule(owner), name, nn.Parameter(value, requires_grad=trained))


def store(model: fx.GraphModule, before: fx.Node, path: str, value: Tensor, trained: bool) -> fx.Node:
    """Store a tensor as a new attribute at a path, with the first numeric suffix that is not taken.

    Returns:
        The node that reads it, inserted before `before`.
    """
    owner, _, name = path.rpartition(".")
    unused, count = name, 0
    while getattr(model.get_submodule(owner), unused, None) is not None:
        count += 1
        unused = f"{name}_{count}"
    path = f"{owner}.{unused}".lstrip(".")
    _set(model, path, value, trained)
    with model.graph.inserting_before(before):
        return model.graph.get_attr(path)


class UniqueNames(set[str]):
    """The names that are taken.  The time to add one does not depend on the number of names that begin alike.

    >>> names = UniqueNames({"conv"})
    >>> names.fresh("conv"), names.fresh("conv"), names.fresh("linear")
    ('conv_1', 'conv_2', 'linear')
    """

    def __init__(self, names: set[str] | frozenset[str] = frozenset()) -> None:
        super().__init__(names)
        self._suffixes: dict[str, int] = {}

    def fresh(self, name: str) -> str:
        """Return the name, or the name with the first numeric suffix that is not taken; it is taken from now on."""
        found = name
        if name in self:
            suffix = next(i for i in count(self._suffixes.get(name, 1)) if f"{name}_{i}" not in self)
            self._suffixes[name] = suffix + 1
            found = f"{name}_{suffix}"
        self.add(found)
        return found
