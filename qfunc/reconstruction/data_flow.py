"""The data flow of a network: its nodes without constants and masks, dominators, and single-entry single-exit regions."""

from __future__ import annotations

from attrs import frozen
from torch import fx

from qfunc.graph.dtypes import node_types
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, has, kind_of, slots


def has_rounding(node: fx.Node) -> bool:
    """Return True if the rounding of an op's weights can be learned."""
    return has(node, Trait.WEIGHTED) or has(node, Trait.RECURRENT) or kind_of(node) == "matmul"


class DataFlow:
    """The data nodes of a network in order, with their `inputs` and `readers`.

    Constants, sizes, positions, masks, token ids and values computed only from them are not data: each unit computes them
    where it needs them.  An op that reads weights by them is data, as the embedding of ids that the network is given.
    Inputs that no op with weights reads directly, such as a float mask that is added to scores, are not.  The edges by
    which an op reads a size, a mask or ids are omitted.

    >>> import torch
    >>> from qfunc.frontend.capture import capture
    >>> class Net(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.relu(x).reshape(x.shape[0], -1)
    >>> [n.name for n in DataFlow(capture()(Net())).nodes]
    ['x', 'relu', 'reshape']
    """

    def __init__(self, network: fx.GraphModule) -> None:
        self.network = network
        self.order = {n: i for i, n in enumerate(network.graph.nodes)}
        types = node_types(network)
        self.free: set[fx.Node] = set()
        given: set[fx.Node] = set()  # the network's inputs, and values that depend on their elements
        for node in self.order:
            if node.op == "placeholder":
                depends = not _has_default(node)
            else:
                depends = kind_of(node) != "size" and not given.isdisjoint(node.all_input_nodes)
            if depends:
                given.add(node)
            if node in types.positions or node in types.integers or (not depends and _is_free(node, self.free)):
                self.free.add(node)
        self.free |= self._float_masks()
        self.nodes = [n for n in self.order if n not in self.free and n.op != "output"]
        self.inputs = {n: [p for p in _data_inputs(n) if p not in self.free] for n in self.nodes}
        self.readers: dict[fx.Node, list[fx.Node]] = {n: [] for n in self.nodes}
        for reader, nodes in self.inputs.items():
            for node in nodes:
                self.readers[node].append(reader)
        self.returned = {n for node in self.order if node.op == "output" for n in node.all_input_nodes}

    def _float_masks(self) -> set[fx.Node]:
        # Inputs, with the values computed only from them, that no op with weights reads; none if that is every input.  The
        # embedding of an input counts as an input.
        known = self.free | {n for n in self.order if n.op == "output"}
        inputs = [n for n in self.order if n not in known and all(p in self.free for p in n.all_input_nodes)]
        dependents = {n: self._dependents(n) for n in inputs}
        layers = [n for n in self.order if self.is_layer(n)]
        masks = [n for n in inputs if all(dependents[n].isdisjoint(w.all_input_nodes) for w in layers)]
        return set().union(*(dependents[n] for n in masks)) if len(masks) < len(inputs) else set()

    def _dependents(self, start: fx.Node) -> set[fx.Node]:
        dependents = {start}
        for node in self.order:
            inputs = set(node.all_input_nodes) - self.free
            if inputs and inputs <= dependents and node.op != "output" and not self.is_layer(node):
                dependents.add(node)
        return dependents

    def is_layer(self, node: fx.Node) -> bool:
        """Return True if an op is a conv, linear, matmul or recurrent op with a constant weight."""
        return has_rounding(node) and any(slot == "weight" and p in self.free for slot, p in slots(node))


def _has_default(node: fx.Node) -> bool:
    return any(not isinstance(default, fx.Node) for default in node.args)  # def forward(self, x, gain=1.0)


def _is_free(node: fx.Node, free: set[fx.Node]) -> bool:
    # True if a value that depends on no input depends only on constants and sizes.
    if node.op == "output":
        return False
    if node.op in ("placeholder", "get_attr") or kind_of(node) == "size":
        return True
    inputs = node.all_input_nodes
    return bool(inputs) and all(n in free for n in inputs)


def _data_inputs(node: fx.Node) -> list[fx.Node]:
    match kind_of(node):
        case "mask":
            return [n for n in node.args[:1] if isinstance(n, fx.Node)]
        case "sdpa":
            return list(dict.fromkeys(attribute(node, name) for name in ("query", "key", "value")))
    return node.all_input_nodes


@frozen(eq=False)
class Region:
    """The ops between `entry` (outside; None: the inputs of the model) and `exit` (inside), in graph order."""

    entry: fx.Node | None
    exit: fx.Node
    nodes: tuple[fx.Node, ...]


def dominators(flow: DataFlow) -> dict[fx.Node, fx.Node | None]:
    """Return the immediate dominator of each node: the last other node on every path from the inputs to it.

    None is a virtual node before all inputs.  The graph has no cycles, so one pass in order is enough.

    Source: Cooper, Harvey, Kennedy: A simple, fast dominance algorithm (2001).
    """
    dominator: dict[fx.Node, fx.Node | None] = {}
    depth: dict[fx.Node | None, int] = {None: 0}
    for node in flow.nodes:
        inputs = flow.inputs[node]
        common: fx.Node | None = inputs[0] if inputs else None
        for other in inputs[1:]:
            right: fx.Node | None = other
            while common is not right:  # None has depth 0
                if common is not None and depth[common] >= depth[right]:
                    common = dominator[common]
                elif right is not None:
                    right = dominator[right]
        dominator[node] = common
        depth[node] = depth[common] + 1
    return dominator


def regions(flow: DataFlow) -> list[Region]:
    """Return the region between each op with several inputs and its immediate dominator, if nothing else is read outside.

    A region is entered only through its entry, because any other path would contradict the dominator.

    >>> import torch
    >>> from qfunc.frontend.capture import capture
    >>> class Net(torch.nn.Module):
    ...     def forward(self, x):
    ...         x = torch.tanh(x)
    ...         return torch.relu(x + torch.sigmoid(torch.exp(x)))
    >>> [(r.entry.name, [n.name for n in r.nodes]) for r in regions(DataFlow(capture()(Net())))]
    [('tanh', ['exp', 'sigmoid', 'add'])]
    """
    dominator, result = dominators(flow), []
    for join in flow.nodes:
        if len(flow.inputs[join]) < 2:
            continue
        inside = _between(dominator[join], join, flow)
        inner = inside - {join}
        if all(user in inside for node in inner for user in flow.readers[node]) and not inner & flow.returned:
            ordered = sorted((n for n in inside if n.op != "placeholder"), key=flow.order.__getitem__)
            result.append(Region(dominator[join], join, tuple(ordered)))
    return result


def is_gate(region: Region, flow: DataFlow) -> bool:
    """Return True if a region multiplies the value of its entry by a function of it: x * f(x)."""
    return kind_of(region.exit) == "mul" and region.entry is not None and region.entry in flow.inputs[region.exit]


def _between(entry: fx.Node | None, exit_: fx.Node, flow: DataFlow) -> set[fx.Node]:
    inside, todo = {exit_}, [exit_]
    while todo:
        for node in flow.inputs[todo.pop()]:
            if node is not entry and node not in inside:
                inside.add(node)
                todo.append(node)
    return inside
