"""The units that are reconstructed, from the graph's structure: layers, or blocks with one entry and one exit."""

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
from qfunc.ops.vocabulary import kind_of
from qfunc.reconstruction.data_flow import DataFlow, Region, is_gate, regions
from qfunc.specs._check import integer, refuse

_TAIL = ("relu", "clip", "leaky_relu", "prelu", "sigmoid", "tanh", "gelu", "silu", "hardswish", "hardsigmoid", "elu", 
         "softplus", "mish", "batch_norm", "instance_norm", "layer_norm", "group_norm", "rms_norm", "dropout")  # fmt: skip
_ARITHMETIC = (*_TAIL, "add", "sub", "mul", "div", "exp")


@frozen
class Unit:
    """Some ops that are reconstructed together: the user's path, the ops by node name in order, those with weights.

    `nodes` are names in the captured graph, `ops` the paths of the ops with weights.

    >>> Unit("fc", nodes=("fc", "relu"), ops=("fc",)).nodes[-1]
    'relu'
    """

    name: str
    nodes: tuple[str, ...]
    ops: tuple[str, ...]


@frozen
class Layers:
    """Each conv, linear, matmul or recurrent op by itself, with the norms and activations behind it.

    A residual add is no part of a layer: its other operand comes from elsewhere.

    >>> from torch import nn
    >>> import qfunc
    >>> from qfunc import targets
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3))
    >>> [unit.nodes for unit in units(Layers())(qfunc.quantize(targets.tensorrt)(net))]
    [('_0', '_1'), ('_2',)]
    """

    def groups(self, flow: DataFlow) -> list[tuple[str, list[fx.Node]]]:
        """Return the nodes of each unit, with a name if the user gave one."""
        taken: set[fx.Node] = set()
        return [("", nodes) for nodes in _layers(flow, regions(flow), taken)]


def _modules(instance: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, tuple) or not all(isinstance(v, str) and v for v in value):
        do = "Write Blocks(modules=('layer1.*', 'head'))."
        raise refuse(instance, attribute.name, value, "a tuple of paths of modules", do)


@frozen
class Blocks:
    """Regions of the graph with one entry and one exit: around residual adds, attention, other branches; else layers.

    Where a value is joined from several, the block reaches back to the last op through which all of them come (the
    immediate dominator), if nothing inside is read from outside; of nested ones the largest with at most `most` ops with
    weights.  A gate, x * f(x) with ops with weights in f (squeeze and excitation), belongs to the unit that gives x.  A
    depthwise conv takes the 1x1 convs before and behind it and its gate, so that inverted bottlenecks without a
    residual add are blocks, too.  Ops with weights that stand in no block are layers.

    Args:
        modules: Paths of modules, perhaps with wildcards, each of which is a block, whatever the graph looks like.
        most: Ops with weights in a block.

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
        """Return the nodes of each unit, with a name if the user gave one."""
        declared = [pair for pattern in self.modules for pair in _declared(pattern, flow)]
        taken = {n for _, nodes in declared for n in nodes}
        if sum(len(nodes) for _, nodes in declared) > len(taken):
            found, do = "modules inside each other", "Name one of them."
            raise SpecError(where="Blocks.modules", found=found, wanted="modules side by side", do=do)
        found_regions, made = regions(flow), list[list[fx.Node]]()
        gates: dict[fx.Node | None, list[fx.Node]] = {}
        for region in sorted(found_regions, key=lambda r: -len(r.nodes)):
            if 1 <= sum(map(flow.weighed, region.nodes)) <= self.most and taken.isdisjoint(region.nodes):
                nodes = _with_tail(list(region.nodes), flow, found_regions, taken)
                taken.update(nodes)
                if is_gate(region, flow):
                    gates[region.entry] = nodes
                else:
                    made.append(nodes)
        layers = [self._gated(nodes, gates, flow) for nodes in _layers(flow, found_regions, taken)]
        made = [self._gated(nodes, gates, flow) for nodes in made]
        return [*declared, *(("", nodes) for nodes in (*made, *gates.values(), *_bottlenecks(layers, flow)))]

    def _gated(self, nodes: list[fx.Node], gates: dict[fx.Node | None, list[fx.Node]], flow: DataFlow) -> list[fx.Node]:
        # With the gates on the value that it gives; takes them.
        while nodes[-1] in gates and sum(map(flow.weighed, (*nodes, *gates[nodes[-1]]))) <= self.most:
            nodes = [*nodes, *gates.pop(nodes[-1])]
        return nodes


def units(how: Layers | Blocks) -> Callable[[Any], tuple[Unit, ...]]:
    """Return a function from a quantized model to its units, in graph order; of submodules that `quantize(submodules=)` "
    "quantized, too.

    Raises:
        SpecError: a path of no module, or modules inside each other.
        CalibrationError: the model is not quantized.

    >>> from torch import nn
    >>> import qfunc
    >>> from qfunc import targets
    >>> units(Blocks())(qfunc.quantize(targets.tensorrt)(nn.Sequential(nn.Linear(3, 4), nn.Sigmoid())))
    (Unit(name='0', nodes=('_0', '_1'), ops=('0',)),)
    """

    def found(model: Any) -> tuple[Unit, ...]:
        each = require_submodules(model, "quantized", "units")
        return tuple(unit for part in each.values() for unit in units_of(DataFlow(float_network(part)), how))

    return found


def units_of(flow: DataFlow, how: Layers | Blocks) -> list[Unit]:
    """Return the units of a float network in graph order, with names that differ."""
    made: dict[str, Unit] = {}
    for name, unordered in sorted(how.groups(flow), key=lambda group: min(flow.order[n] for n in group[1])):
        nodes = sorted(unordered, key=flow.order.__getitem__)
        ops = tuple(path_of(flow.network, n) for n in nodes if flow.weighed(n))
        if not ops:
            continue
        name = name or (ops[0] if len(ops) == 1 else _common([path_of(flow.network, n) for n in nodes], ops))
        unique = name if name not in made else f"{name}@{nodes[-1].name}"
        made[unique] = Unit(unique, tuple(n.name for n in nodes), ops)
    return list(made.values())


def _common(paths: list[str], ops: tuple[str, ...]) -> str:
    # The module around all of them, or else the first and the last op.
    around = os.path.commonpath([p.replace(".", "/") for p in ops]) if all(ops) else ""
    return around.replace("/", ".") or f"{ops[0]} to {ops[-1]}"


def _declared(pattern: str, flow: DataFlow) -> list[tuple[str, list[fx.Node]]]:
    parents: dict[str, list[fx.Node]] = {}
    for node in flow.nodes:
        parts = path_of(flow.network, node).split("@")[0].split(".") if node.op != "placeholder" else []
        around = (".".join(parts[:i]) for i in range(1, len(parts) + 1))
        hit = next((path for path in around if fnmatchcase(path, pattern)), None)
        if hit is not None:
            parents.setdefault(hit, []).append(node)
    if not parents:
        paths = dict.fromkeys(path_of(flow.network, n).rpartition(".")[0] for n in flow.nodes if flow.weighed(n))
        raise SpecError(
            where="Blocks.modules",
            found=f"{pattern!r}, which is the path of no module with ops",
            wanted="paths of modules",
            do=f"Modules with weights in them: {', '.join(filter(None, paths)) or 'none'}.",
        )
    return list(parents.items())


def _layers(flow: DataFlow, found: list[Region], taken: set[fx.Node]) -> list[list[fx.Node]]:
    # Each op with weights that is not taken, with its tail; takes them.
    made = []
    for node in flow.nodes:
        if flow.weighed(node) and node not in taken:
            nodes = _with_tail([node], flow, found, taken)
            taken.update(nodes)
            made.append(nodes)
    return made


def _with_tail(nodes: list[fx.Node], flow: DataFlow, found: list[Region], taken: set[fx.Node]) -> list[fx.Node]:
    # A chain of norms and activations behind the exit; also those that are written out as several ops: x * sigmoid(x).
    while nodes[-1] not in flow.returned:
        behind = flow.behind[nodes[-1]]
        written = next((r for r in found if r.entry is nodes[-1] and all(u in r.nodes for u in behind)), None)
        if len(behind) == 1 and kind_of(behind[0]) in _TAIL and flow.before[behind[0]] == [nodes[-1]]:
            more: tuple[fx.Node, ...] = (behind[0],)
        elif len(behind) > 1 and written is not None and all(kind_of(n) in _ARITHMETIC for n in written.nodes):
            more = written.nodes
        else:
            break
        if not taken.isdisjoint(more) or any(map(flow.weighed, more)):
            break
        nodes = [*nodes, *more]
    return nodes


def _bottlenecks(layers: list[list[fx.Node]], flow: DataFlow) -> list[list[fx.Node]]:
    # A depthwise conv with the 1x1 convs that stand directly before and behind it.
    by_root = {nodes[0]: nodes for nodes in layers}
    by_exit = {nodes[-1]: nodes for nodes in layers}
    joined: set[fx.Node] = set()
    made = []
    for root, nodes in by_root.items():
        if root in joined or not _is(root, depthwise=True):
            continue
        before, behind = by_exit.get(flow.before[root][0]), flow.behind[nodes[-1]]
        whole = nodes
        if before and before[0] not in joined and _is(before[0]) and flow.behind[before[-1]] == [root]:
            whole = [*before, *whole]
        if len(behind) == 1 and behind[0] in by_root and _is(behind[0]):
            whole = [*whole, *by_root[behind[0]]]
        joined.update(whole)
        made.append(whole)
    return [*made, *(nodes for nodes in layers if nodes[0] not in joined)]


def _is(node: fx.Node, depthwise: bool = False) -> bool:
    given = attributes(node) if kind_of(node) == "conv" else {}
    return bool(given) and (given["depthwise"] if depthwise else set(given["kernel"]) == {1} and given["groups"] == 1)


__all__ = ["Blocks", "Layers", "Unit", "units", "units_of"]
