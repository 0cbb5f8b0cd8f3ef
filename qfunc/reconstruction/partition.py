"""Partition a network into units of reconstruction: layers, or blocks with one entry and one exit."""

from __future__ import annotations

import os.path
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from attrs import field, frozen
from torch import fx

from qfunc.errors import SpecError
from qfunc.graph.float_network import float_network
from qfunc.graph.record import path_of
from qfunc.graph.selectors import attributes
from qfunc.graph.submodules import require_submodules
from qfunc.ops.definition import Trait
from qfunc.ops.node import has, kind_of
from qfunc.reconstruction.data_flow import DataFlow, Region, is_gate, regions
from qfunc.specs._check import integer, refuse


@frozen
class ReconstructionUnit:
    """Ops that are reconstructed together: the path in the user's model, all ops in order, and those with weights.

    `nodes` are names in the captured graph, `ops` the paths of the ops with weights.

    >>> ReconstructionUnit("fc", nodes=("fc", "relu"), ops=("fc",)).nodes[-1]
    'relu'
    """

    name: str
    nodes: tuple[str, ...]
    ops: tuple[str, ...]


@frozen
class Layers:
    """Each conv, linear, matmul or recurrent op by itself, with the norms and activations after it.

    A residual add is not part of a layer, because its other operand comes from outside.

    >>> from torch import nn
    >>> import qfunc
    >>> from qfunc import targets
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3))
    >>> [unit.nodes for unit in units(Layers())(qfunc.quantize(targets.tensorrt)(net))]
    [('_0', '_1'), ('_2',)]
    """

    def groups(self, flow: DataFlow) -> list[tuple[str, list[fx.Node]]]:
        """Return the nodes of each unit, with its name, "" if it has none."""
        taken: set[fx.Node] = set()
        return [("", nodes) for nodes in _layers(flow, regions(flow), taken)]


def _modules(instance: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, tuple) or not all(isinstance(v, str) and v for v in value):
        do = "Write Blocks(modules=('layer1.*', 'head'))."
        raise refuse(instance, attribute.name, value, "a tuple of paths of modules", do)


@frozen
class Blocks:
    """Regions of the graph with one entry and one exit: around residual adds, attention, other branches; else layers.

    A block ends at an op with several inputs and starts after its immediate dominator, the last op on all paths to it, if
    nothing inside is read from outside.  Of nested blocks, the largest with at most `most` ops with weights is used.  A
    gate, x * f(x) with ops with weights in f (squeeze and excitation), belongs to the unit that computes x.  A depthwise
    conv forms a block with the 1x1 convs before and after it and its gate, so that inverted bottlenecks without a
    residual add are blocks, too.  Ops with weights outside of any block are layers.

    Args:
        modules: Paths of modules, perhaps with wildcards; each matching module is a block, regardless of the graph.
        most: The largest number of ops with weights in a block.

    >>> from torch import nn
    >>> import qfunc
    >>> from qfunc import targets
    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.stem, self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
    ...     def forward(self, x):
    ...         x = self.stem(x).relu()
    ...         return (x + self.right(self.left(x).relu())).relu()
    >>> [(unit.name, unit.ops) for unit in units(Blocks())(qfunc.quantize(targets.tensorrt)(Net()))]
    [('stem', ('stem',)), ('left to right', ('left', 'right'))]
    """

    modules: tuple[str, ...] = field(default=(), validator=_modules)
    most: int = field(default=12, validator=integer(1))

    def groups(self, flow: DataFlow) -> list[tuple[str, list[fx.Node]]]:
        """Return the nodes of each unit, with its name, "" if it has none."""
        declared = [pair for pattern in self.modules for pair in _declared(pattern, flow)]
        taken = {n for _, nodes in declared for n in nodes}
        if sum(len(nodes) for _, nodes in declared) > len(taken):
            found, do = "nested modules", "Name only one of them."
            raise SpecError(where="Blocks.modules", found=found, wanted="disjoint modules", do=do)
        found_regions, blocks = regions(flow), list[list[fx.Node]]()
        gates: dict[fx.Node | None, list[fx.Node]] = {}
        for region in sorted(found_regions, key=lambda r: -len(r.nodes)):
            if 1 <= sum(map(flow.is_layer, region.nodes)) <= self.most and taken.isdisjoint(region.nodes):
                nodes = _with_tail(list(region.nodes), flow, found_regions, taken)
                taken.update(nodes)
                if is_gate(region, flow):
                    gates[region.entry] = nodes
                else:
                    blocks.append(nodes)
        layers = [self._with_gates(nodes, gates, flow) for nodes in _layers(flow, found_regions, taken)]
        blocks = [self._with_gates(nodes, gates, flow) for nodes in blocks]
        return [*declared, *(("", nodes) for nodes in (*blocks, *gates.values(), *_bottlenecks(layers, flow)))]

    def _with_gates(self, nodes: list[fx.Node], gates: dict[fx.Node | None, list[fx.Node]], flow: DataFlow) -> list[fx.Node]:
        # Append the gates on the unit's output, and remove them from `gates`.
        while nodes[-1] in gates and sum(map(flow.is_layer, (*nodes, *gates[nodes[-1]]))) <= self.most:
            nodes = [*nodes, *gates.pop(nodes[-1])]
        return nodes


def _ends_layer(node: fx.Node) -> bool:
    return has(node, Trait.ACTIVATION) or has(node, Trait.NORM) or kind_of(node) == "dropout"


def _computes_tail(node: fx.Node) -> bool:
    # An activation may be written as arithmetic, x / (1 + exp(-x)).
    return _ends_layer(node) or has(node, Trait.ARITHMETIC) or kind_of(node) == "exp"


def units(how: Layers | Blocks) -> Callable[[Any], tuple[ReconstructionUnit, ...]]:
    """Return a function from a quantized model to its units, in graph order.

    Submodules quantized by `quantize(submodules=)` are included.

    Raises:
        SpecError: a path that matches no module, or nested modules.
        CalibrationError: the model is not quantized.

    >>> from torch import nn
    >>> import qfunc
    >>> from qfunc import targets
    >>> units(Blocks())(qfunc.quantize(targets.tensorrt)(nn.Sequential(nn.Linear(3, 4), nn.Sigmoid())))
    (ReconstructionUnit(name='0', nodes=('_0', '_1'), ops=('0',)),)
    """

    def found(model: Any) -> tuple[ReconstructionUnit, ...]:
        parts = require_submodules(model, "quantized", "units")
        return tuple(unit for part in parts.values() for unit in units_of(DataFlow(float_network(part)), how))

    return found


def units_of(flow: DataFlow, unit: Layers | Blocks) -> list[ReconstructionUnit]:
    """Return the units of a float network in graph order, with unique names."""
    units: dict[str, ReconstructionUnit] = {}
    for name, unordered in sorted(unit.groups(flow), key=lambda group: min(flow.order[n] for n in group[1])):
        nodes = sorted(unordered, key=flow.order.__getitem__)
        ops = tuple(path_of(flow.network, n) for n in nodes if flow.is_layer(n))
        if not ops:
            continue
        name = name or (ops[0] if len(ops) == 1 else _common([path_of(flow.network, n) for n in nodes], ops))
        unique = name if name not in units else f"{name}@{nodes[-1].name}"
        units[unique] = ReconstructionUnit(unique, tuple(n.name for n in nodes), ops)
    return list(units.values())


def _common(paths: list[str], ops: tuple[str, ...]) -> str:
    # The innermost common module, or else the first and the last op.
    module = os.path.commonpath([p.replace(".", "/") for p in ops]) if all(ops) else ""
    return module.replace("/", ".") or f"{ops[0]} to {ops[-1]}"


def _declared(pattern: str, flow: DataFlow) -> list[tuple[str, list[fx.Node]]]:
    parents: dict[str, list[fx.Node]] = {}
    for node in flow.nodes:
        parts = path_of(flow.network, node).split("@")[0].split(".") if node.op != "placeholder" else []
        modules = (".".join(parts[:i]) for i in range(1, len(parts) + 1))
        match = next((path for path in modules if fnmatchcase(path, pattern)), None)
        if match is not None:
            parents.setdefault(match, []).append(node)
    if not parents:
        paths = dict.fromkeys(path_of(flow.network, n).rpartition(".")[0] for n in flow.nodes if flow.is_layer(n))
        raise SpecError(
            where="Blocks.modules",
            found=f"{pattern!r}, which matches no module with ops",
            wanted="paths of modules",
            do=f"Modules with weights in them: {', '.join(filter(None, paths)) or 'none'}.",
        )
    return list(parents.items())


def _layers(flow: DataFlow, found: list[Region], taken: set[fx.Node]) -> list[list[fx.Node]]:
    # The layers of ops with weights that are not in `taken`, with their tails; their nodes are added to `taken`.
    layers = []
    for node in flow.nodes:
        if flow.is_layer(node) and node not in taken:
            nodes = _with_tail([node], flow, found, taken)
            taken.update(nodes)
            layers.append(nodes)
    return layers


def _with_tail(nodes: list[fx.Node], flow: DataFlow, found_regions: list[Region], taken: set[fx.Node]) -> list[fx.Node]:
    # Append the norms and activations after the exit, including those composed of several ops, as x * sigmoid(x).
    while nodes[-1] not in flow.returned:
        readers = flow.readers[nodes[-1]]
        composed = next((r for r in found_regions if r.entry is nodes[-1] and all(u in r.nodes for u in readers)), None)
        if len(readers) == 1 and _ends_layer(readers[0]) and flow.inputs[readers[0]] == [nodes[-1]]:
            more: tuple[fx.Node, ...] = (readers[0],)
        elif len(readers) > 1 and composed is not None and all(_computes_tail(n) for n in composed.nodes):
            more = composed.nodes
        else:
            break
        if not taken.isdisjoint(more) or any(map(flow.is_layer, more)):
            break
        nodes = [*nodes, *more]
    return nodes


def _bottlenecks(layers: list[list[fx.Node]], flow: DataFlow) -> list[list[fx.Node]]:
    # Join each depthwise conv with the 1x1 convs directly before and after it.
    by_root = {nodes[0]: nodes for nodes in layers}
    by_exit = {nodes[-1]: nodes for nodes in layers}
    joined: set[fx.Node] = set()
    bottlenecks = []
    for root, nodes in by_root.items():
        if root in joined or not _is_conv(root, depthwise=True):
            continue
        before, after = by_exit.get(flow.inputs[root][0]), flow.readers[nodes[-1]]
        block = nodes
        if before and before[0] not in joined and _is_conv(before[0]) and flow.readers[before[-1]] == [root]:
            block = [*before, *block]
        if len(after) == 1 and after[0] in by_root and _is_conv(after[0]):
            block = [*block, *by_root[after[0]]]
        joined.update(block)
        bottlenecks.append(block)
    return [*bottlenecks, *(nodes for nodes in layers if nodes[0] not in joined)]


def _is_conv(node: fx.Node, depthwise: bool = False) -> bool:
    conv = attributes(node) if kind_of(node) == "conv" else {}
    return bool(conv) and (conv["depthwise"] if depthwise else set(conv["kernel"]) == {1} and conv["groups"] == 1)
