"""Remove ops that return their input: x + 0, x - 0, x * 1, x / 1, and casts to the dtype that a tensor has."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import torch
from torch import fx

from qfunc.graph.constants import read_attr
from qfunc.graph.dtypes import node_types
from qfunc.ops.creation import cast, cast_like
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, has, kind_of, op_of
from qfunc.ops.sizes import is_number


def remove_neutral_arithmetic(network: fx.GraphModule) -> fx.GraphModule:
    """Replace an op that returns its real input by the input, in place; two quantizers would round the same values twice.

    Runtimes remove such ops, too, and may join the quantizers before and after them.  An input that may hold integers stays,
    because x * 1.0 and x / 1 make real numbers of them.

    >>> import torch
    >>> from qfunc.frontend.capture import capture
    >>> scaled = capture()(fx.symbolic_trace(lambda x: torch.exp(x) * 1.0))
    >>> [n.name for n in remove_neutral_arithmetic(scaled).graph.nodes]
    ['x', 'exp', 'output']
    """
    for node in list(network.graph.nodes):
        kept = _kept(node)
        if kept is not None and _is_real(kept, network):
            node.replace_all_uses_with(kept)
            network.graph.erase_node(node)
    network.recompile()
    return network


def _kept(node: fx.Node) -> fx.Node | None:
    # The operand that the op returns; None if it computes something.
    op = op_of(node)
    if op is None or op.neutral is None or len(node.args) != 2:
        return None
    orders = (node.args, node.args[::-1]) if has(node, Trait.COMMUTATIVE) else (node.args,)
    return next((x for x, y in orders if isinstance(x, fx.Node) and not is_number(x) and _equals(y, op.neutral)), None)


def _equals(value: Any, neutral: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == neutral


def _is_real(node: fx.Node, network: fx.GraphModule) -> bool:
    # True if the graph proves that a tensor has real values.
    if node.op == "get_attr":
        return bool(read_attr(network, node).is_floating_point())
    if op_of(node) is None or has(node, Trait.INTEGER_RESULT) or has(node, Trait.CREATES):
        return False
    if not has(node, Trait.INTEGER_IF_INPUTS) and not has(node, Trait.MOVES_VALUES):
        return True
    return any(_is_real(n, network) for n in node.all_input_nodes if not is_number(n))


def remove_casts(network: fx.GraphModule) -> fx.GraphModule:
    """Replace a cast of float32 to float32 by its input, in place; a quantizer after it would round the same values twice.

    The dtype of an input is not known, so that its cast stays: it may hold integers.

    >>> from qfunc.frontend.capture import capture
    >>> scaled = capture()(fx.symbolic_trace(lambda x: torch.sigmoid(x.float()).type_as(x.float())))
    >>> [n.name for n in remove_casts(scaled).graph.nodes]
    ['x', 'float_1', 'sigmoid', 'output']
    """
    integers, known = node_types(network).integers, set[fx.Node]()
    for node in list(network.graph.nodes):
        if not _is_float32(node, network, known, integers):
            continue
        value = node.args[0] if kind_of(node) == "cast" else None
        if isinstance(value, fx.Node) and value in known:
            node.replace_all_uses_with(value)
            network.graph.erase_node(node)
        else:
            known.add(node)
    network.graph.eliminate_dead_code()
    network.recompile()
    return network


def _is_float32(node: fx.Node, network: fx.GraphModule, known: Set[fx.Node], integers: Set[fx.Node]) -> bool:
    # True if the graph proves that a tensor is of float32; `known` has those before it.
    if node.op == "get_attr":
        return bool(read_attr(network, node).dtype == torch.float32)
    if node.op == "call_module" and kind_of(node) != "unknown":  # norms and dropouts
        return node.args[0] in known
    op = op_of(node)
    if op is None or is_number(node) or node in integers or has(node, Trait.CREATES):
        return False
    if op.call is cast:
        return bool(attribute(node, "dtype") == torch.float32)
    if op.call is cast_like:
        return attribute(node, "like") in known
    if has(node, Trait.INTEGER_RESULT):
        return False
    weight = attribute(node, "weight") if "weight" in op.parameters else None
    if weight is not None:  # torch takes no others together
        return weight in known
    tensors = [n for n in node.all_input_nodes if not is_number(n) and n not in integers]
    return bool(tensors) and known >= set(tensors)
