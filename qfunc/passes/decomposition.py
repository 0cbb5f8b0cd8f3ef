"""Replace ops by several others, whose last keeps the name of the op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import evolve
from torch import fx

from qfunc.graph.record import NodeInfo, attach, path_of, record_of

Emit = Callable[..., fx.Node]
"""emit(function, *arguments) -> the node of a new call."""
Decompose = Callable[[fx.Node, Emit], fx.Node | None]
"""(op, emit) -> the node that computes it, or None to leave it."""


def decompose(network: fx.GraphModule, choose: Callable[[fx.Node], Decompose | None]) -> fx.GraphModule:
    """Replace each op for which `choose` returns a decomposition, in place, and return the network.

    The new ops have the path of the op, and behind it the names of their functions.
    """
    record = record_of(network)
    chosen = [(node, made) for node in network.graph.nodes if node.op.startswith("call") and (made := choose(node))]
    if record is None or not chosen:
        return network
    facts = dict(record.facts)
    for node, made in chosen:
        source = facts.get(node.name, NodeInfo(path_of(network, node)))

        def emit(function: Any, *arguments: Any, node: fx.Node = node, source: NodeInfo = source) -> fx.Node:
            with node.graph.inserting_before(node):
                result = node.graph.create_node("call_function", function, arguments, {}, f"{node.name}_{function.__name__}")
            facts[result.name] = evolve(source, path=f"{source.path}.{result.name.removeprefix(f'{node.name}_')}")
            return result

        result = made(node, emit)
        if result is None:
            continue
        node.replace_all_uses_with(result)
        node.graph.erase_node(node)
        facts.pop(result.name, None)
        result.name = node.name  # the last op keeps the name of the decomposed op
        facts[result.name] = source
    network.recompile()
    return attach(network, evolve(record, facts=facts))
