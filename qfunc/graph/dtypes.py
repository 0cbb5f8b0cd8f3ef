"""Detect tensors that are not activations: integers and booleans, such as token ids, masks and positions."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from attrs import frozen
from torch import fx, nn

from qfunc.graph.selectors import Context
from qfunc.ops.creation import cast_like
from qfunc.ops.definition import Trait
from qfunc.ops.node import TENSORS, attribute, op_of
from qfunc.ops.sizes import is_number


@frozen
class NodeTypes:
    """The nodes of a graph with values that are not activations.

    `integers` are of an integer or boolean type; `positions` are ops whose values follow from masks, positions and
    buffers alone, of any type.
    """

    integers: frozenset[fx.Node]
    positions: frozenset[fx.Node]


def node_types(network: fx.GraphModule, context: Context | None = None) -> NodeTypes:
    """Return the nodes with values that are not activations, as the graph or the record of torch.export proves.

    Args:
        network: A captured graph.
        context: Its context, if it may have user-defined ops: their traits count too.

    >>> from qfunc.frontend.capture import capture
    >>> made = capture()(fx.symbolic_trace(lambda x, m: x + (1.0 - (m > 0).float()) * -1e4))
    >>> types = node_types(made)
    >>> [n.name for n in types.integers], sorted(n.name for n in types.positions)
    (['gt'], ['float_1', 'gt', 'mul', 'sub'])
    """
    context = context or Context(network)
    facts, traits_of_ops = context.record.facts if context.record else {}, context.traits_of_ops()
    integers, positions, fixed = set[fx.Node](), set[fx.Node](), set[fx.Node]()
    for node in network.graph.nodes:
        fact, traits = facts.get(node.name), traits_of_ops.get(node, Trait(0))
        if (fact is not None and fact.is_integer) or _gives_integers(node, traits, integers):
            integers.add(node)
        if node.op == "get_attr" and not _trains(node):
            fixed.add(node)
        elif node.op == "call_function" and (node in integers or Trait.CREATES in traits):
            positions.add(node)
        elif Trait.POSITION_IF_INPUTS in traits:
            read = node.args[:1] if node.target is cast_like else node.all_input_nodes  # of `like` only the dtype
            tensors = [n for n in _nodes(read) if _is_tensor(n)]
            known = [n in positions or n in integers for n in tensors]
            if all(k or n in fixed for k, n in zip(known, tensors, strict=True)):
                (positions if any(known) else fixed).add(node)
    return NodeTypes(frozenset(integers), frozenset(positions))


def position_nodes(network: fx.GraphModule) -> frozenset[fx.Node]:
    """Return the ops whose values follow from masks, positions and buffers alone; these are not activations."""
    return node_types(network).positions


def _gives_integers(node: fx.Node, traits: Trait, known: Set[fx.Node]) -> bool:
    if Trait.INTEGER_RESULT in traits:
        return True
    if not traits & (Trait.CREATES | Trait.POSITION_IF_INPUTS | Trait.INTEGER_IF_INPUTS):
        return False
    op = op_of(node) if node.op == "call_function" else None
    if op is not None:
        if op.call is cast_like:
            return attribute(node, "like") in known
        if (op.kind == "cast" or Trait.CREATES in op.traits) and attribute(node, "dtype") is not None:
            return not attribute(node, "dtype").is_floating_point
        if op.kind == "arange":
            return not any(isinstance(v, float) for v in node.args[:3])
    if Trait.INTEGER_IF_INPUTS not in traits:
        return False
    named = [("", v) for v in node.all_input_nodes] if op is None else list(zip(op.parameters, node.args, strict=True))
    operands = [v for name, v in named if name not in ("condition", "dim", "index", "indices")]
    tensors = [n for n in _nodes(operands) if _is_tensor(n)]
    return bool(tensors) and not any(isinstance(v, float) for v in operands) and all(n in known for n in tensors)


def _is_tensor(node: fx.Node) -> bool:
    return node.op in ("placeholder", "get_attr", "call_module") or node.target in TENSORS or not is_number(node)


def _nodes(values: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg(values, found.append)
    return found


def _trains(node: fx.Node) -> bool:
    owner, _, name = str(node.target).rpartition(".")
    assert node.graph.owning_module is not None
    return isinstance(getattr(node.graph.owning_module.get_submodule(owner), name), nn.Parameter)
