"""Which tensors hold whole numbers or booleans (positions, token ids, masks), and are no activations."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from qfunc.graph.record import Record, record_of
from qfunc.ops.creation import cast_like
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, has, kind_of, op_of


def is_integer(node: fx.Node, record: Record | None) -> bool:
    """Whether the graph proves that a tensor is of an integer or boolean type; torch.export tells it of every tensor.

    >>> from qfunc.frontend.capture import capture
    >>> graph = capture()(fx.symbolic_trace(lambda x: x + (x > 0).long() * 2)).graph
    >>> [n.name for n in graph.nodes if is_integer(n, None)]
    ['gt', 'long', 'mul']
    """
    fact = record.facts.get(node.name) if record else None
    if fact is not None and fact.whole:
        return True
    kind, op = kind_of(node), op_of(node)
    if op is None:
        return False
    if Trait.INTEGER_RESULT in op.traits:
        return True
    if op.call is cast_like:
        return is_integer(attribute(node, "like"), record)
    if (kind == "cast" or Trait.CREATES in op.traits) and attribute(node, "dtype") is not None:
        return not attribute(node, "dtype").is_floating_point
    if kind == "arange":
        return not any(isinstance(v, float) for v in node.args[:3])
    if Trait.INTEGER_IF_INPUTS not in op.traits:
        return False
    given = [
        v for name, v in zip(op.parameters, node.args, strict=True) if name not in ("condition", "dim", "index", "indices")
    ]
    tensors = [n for n in _nodes(given) if not _is_size(n)]
    return bool(tensors) and not any(isinstance(v, float) for v in given) and all(is_integer(n, record) for n in tensors)


def _nodes(values: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg(values, found.append)
    return found


def _is_size(node: fx.Node) -> bool:
    return kind_of(node) == "size" or (kind_of(node) == "unknown" and getattr(node.target, "__module__", "") == "_operator")


def position_nodes(network: fx.GraphModule) -> frozenset[fx.Node]:
    """The ops whose values follow from masks, positions and buffers alone: no activations, whatever their type.

    >>> from qfunc.frontend.capture import capture
    >>> made = capture()(fx.symbolic_trace(lambda x, m: x + (1.0 - (m > 0).float()) * -1e4))
    >>> sorted(n.name for n in position_nodes(made))
    ['float_1', 'gt', 'mul', 'sub']
    """
    record, found, fixed = record_of(network), set[fx.Node](), set[fx.Node]()
    for node in network.graph.nodes:
        if node.op == "get_attr" and not _trains(node):
            fixed.add(node)
        elif node.op == "call_function" and (is_integer(node, record) or has(node, Trait.CREATES)):
            found.add(node)
        elif has(node, Trait.POSITION_IF_INPUTS):
            tensors = [n for n in node.all_input_nodes if kind_of(n) != "size"]
            made = [n in found or is_integer(n, record) for n in tensors]
            if all(m or n in fixed for m, n in zip(made, tensors, strict=True)):
                (found if any(made) else fixed).add(node)
    return frozenset(found)


def _trains(node: fx.Node) -> bool:
    owner, _, name = str(node.target).rpartition(".")
    assert node.graph.owning_module is not None
    return isinstance(getattr(node.graph.owning_module.get_submodule(owner), name), nn.Parameter)
