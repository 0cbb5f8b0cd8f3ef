"""Order the units of a network, and extract each as a separate module."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen
from torch import fx

from qfunc._collection import paused_collection
from qfunc.errors import SpecError
from qfunc.ops.node import kind_of
from qfunc.reconstruction.data_flow import DataFlow
from qfunc.reconstruction.partition import ReconstructionUnit


@frozen(eq=False)
class Step:
    """A unit, or ops between units (`unit` is None), as a float and as a quantized module.

    Both modules take the values named in `inputs` and return those named in `outputs`; `targets` are the outputs that the
    unit should match, because ops outside of it read them.
    """

    unit: ReconstructionUnit | None
    real: fx.GraphModule
    simulated: fx.GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    targets: tuple[str, ...]


@paused_collection()
def steps(flow: DataFlow, quantized: fx.GraphModule, units: Sequence[ReconstructionUnit], inline: frozenset[str]) -> list[Step]:
    """Return the steps up to the last unit, each after the steps whose outputs it reads.

    Args:
        flow: The data flow of the float network.
        quantized: The same network with quantizers; quantizers of activations run in the steps that read them.
        inline: The names of nodes that each step computes for itself.
    Raises:
        SpecError: a declared block that would have to run before and after another op.
    """
    names = {n.name: n for n in flow.order}
    networks = (flow.network, names), (quantized, {n.name: n for n in quantized.graph.nodes})
    inline = inline | {n.name for n in flow.free}
    groups = _ordered(flow, units, inline)
    while groups and groups[-1][0] is None:
        groups.pop()
    result, wanted = list[Step](), set[str]()
    for unit, nodes in reversed(groups):
        inside = frozenset(n.name for n in nodes)
        read = {n for n in nodes if n in flow.returned or any(u.name not in inside for u in flow.readers.get(n, ()))}
        targets = tuple(n.name for n in nodes if n in read and n.name not in inline) if unit else ()
        outputs = tuple(n.name for n in nodes if n.name in {*wanted, *targets})
        if outputs:
            inputs = _inputs(outputs, inside, inline, names)
            real, simulated = (_cut(network, nodes, inside, inline, inputs, outputs) for network, nodes in networks)
            result.append(Step(unit, real, simulated, inputs, outputs, targets))
            wanted.update(inputs)
    return result[::-1]


def _inputs(
    outputs: Iterable[str], inside: frozenset[str], inline: frozenset[str], names: dict[str, fx.Node]
) -> tuple[str, ...]:
    # The values read from outside, in graph order.
    todo, seen, outside = list(outputs), set[str](), list[fx.Node]()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        node = names[name]
        if (name in inside or name in inline) and not (node.op == "placeholder" and not node.args):
            todo += [n.name for n in node.all_input_nodes]
        elif node.op != "get_attr":
            outside.append(node)
    return tuple(n.name for n in sorted(outside))


def _cut(
    network: fx.GraphModule,
    nodes: Mapping[str, fx.Node],
    inside: Container[str],
    inline: Container[str],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> fx.GraphModule:
    # A module from some values of a network to others; it shares constants and submodules with the network.
    needed, todo = set[fx.Node](), [nodes[name] for name in outputs]
    while todo:
        node = todo.pop()
        if node not in needed and node.name not in inputs:
            needed.add(node)
            todo += node.all_input_nodes
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {nodes[name]: graph.placeholder(name) for name in inputs}
    for node in sorted(needed):
        own = node.name in inside or node.name in inline
        assert own or node.op == "get_attr" or kind_of(node) in ("fake_quantize", "dropout"), node.name
        # A placeholder here has a default value.
        copies[node] = node.args[0] if node.op == "placeholder" else graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[nodes[name]] for name in outputs))
    return fx.GraphModule(network, graph)


def _ordered(
    flow: DataFlow, units: Sequence[ReconstructionUnit], inline: frozenset[str]
) -> list[tuple[ReconstructionUnit | None, list[fx.Node]]]:
    # Units and the ops between them in topological order; ops outside of units run as early as possible.
    names = {n.name: n for n in flow.order}
    group_of: dict[str, int] = {name: i for i, unit in enumerate(units) for name in unit.nodes}
    rest = [n for n in flow.nodes if n.op != "placeholder" and n.name not in group_of and n.name not in inline]
    groups: list[tuple[ReconstructionUnit | None, list[fx.Node]]] = [(unit, [names[n] for n in unit.nodes]) for unit in units]
    groups += [(None, [n]) for n in rest]
    group_of |= {n.name: len(units) + i for i, n in enumerate(rest)}
    dependencies: list[set[int]] = []
    for i, (_, nodes) in enumerate(groups):
        inside = frozenset(n.name for n in nodes)
        dependencies.append({group_of[name] for name in _inputs(inside, inside, inline, names) if name in group_of} - {i})
    readers: dict[int, list[int]] = {}
    for i, groups_before in enumerate(dependencies):
        for other in groups_before:
            readers.setdefault(other, []).append(i)
    priority = [(unit is not None, min(flow.order[n] for n in nodes)) for unit, nodes in groups]
    ready = [(*priority[i], i) for i, groups_before in enumerate(dependencies) if not groups_before]
    heapq.heapify(ready)
    result: list[tuple[ReconstructionUnit | None, list[fx.Node]]] = []
    done: set[int] = set()
    while ready:
        i = heapq.heappop(ready)[-1]
        done.add(i)
        unit, nodes = groups[i]
        if result and unit is None and result[-1][0] is None:
            result[-1][1].extend(nodes)
        else:
            result.append((unit, list(nodes)))
        for reader in readers.get(i, ()):
            dependencies[reader].discard(i)
            if not dependencies[reader]:
                heapq.heappush(ready, (*priority[reader], reader))
    blocked = next((unit for i, (unit, _) in enumerate(groups) if unit is not None and i not in done), None)
    if blocked is not None:
        raise SpecError(
            where=f"reconstruct, block {blocked.name!r}",
            found="ops outside of it that must run between its ops",
            wanted="a block whose ops can run together",
            do="Name the module around it, or remove it from Blocks(modules=...).",
        )
    return result
