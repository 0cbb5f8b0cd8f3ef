"""Masks that are added: scores + (1 - mask) * -10000 is the op "mask", for no scale fits scores and what drops them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from qfunc.graph.float_ops import masked
from qfunc.graph.record import record_of
from qfunc.graph.vocabulary import kind_of, op_of, slots
from qfunc.graph.whole import is_whole

LOW = -50.0
"""What is added to drop a score is at most this: Swin takes -100, BERT -10000, others the least float."""
SURE = -1000.0
"""No activation is multiplied by this or less."""

_OF_POSITIONS = (
    "add", "sub", "mul", "div", "pow", "neg", "abs", "minimum", "maximum", "clip", "where", "cast", "concat", "stack",
    "reshape", "flatten", "transpose", "squeeze", "unsqueeze", "slice", "expand", "repeat", "tile", "index", "gather",
    "full", "arange",
    "exp", "log", "sqrt", "rsqrt", "sin", "cos", "floor", "tril", "triu", "mask", "roll", "difference", "cumsum", "detach",
    "matmul",
)  # fmt: skip
_PASSES = (
    "reshape",
    "transpose",
    "expand",
    "unsqueeze",
    "squeeze",
    "slice",
    "dropout",
    "clip",
    "maximum",
    "add",
    "mask",
    "cast",
)


def of_positions(network: fx.GraphModule) -> frozenset[fx.Node]:
    """The ops whose values follow from masks, positions and buffers alone: no activations, whatever their type.

    >>> from qfunc.graph.capture import capture
    >>> made = capture()(fx.symbolic_trace(lambda x, m: x + (1.0 - (m > 0).float()) * -1e4))
    >>> sorted(n.name for n in of_positions(made))
    ['float_1', 'gt', 'mul', 'sub']
    """
    record, found, fixed = record_of(network), set[fx.Node](), set[fx.Node]()
    for node in network.graph.nodes:
        if node.op == "get_attr" and not _trains(node):
            fixed.add(node)
        elif node.op == "call_function" and (is_whole(node, record) or kind_of(node) in ("full", "arange")):
            found.add(node)
        elif kind_of(node) in _OF_POSITIONS:
            tensors = [n for n in node.all_input_nodes if kind_of(n) != "size"]
            made = [n in found or is_whole(n, record) for n in tensors]
            if all(m or n in fixed for m, n in zip(made, tensors, strict=True)):
                (found if any(made) else fixed).add(node)
    return frozenset(found)


def _trains(node: fx.Node) -> bool:
    owner, _, name = str(node.target).rpartition(".")
    assert node.graph.owning_module is not None
    return isinstance(getattr(node.graph.owning_module.get_submodule(owner), name), nn.Parameter)


def name_masks(network: fx.GraphModule) -> fx.GraphModule:
    """The (own) network in which each addition of a mask is the op "mask"."""
    positions = of_positions(network)
    drops: set[fx.Node] = set()  # what holds values that drop others
    changed = False
    for node in network.graph.nodes:
        kind = kind_of(node)
        if node in positions:
            low = any(isinstance(v, int | float) and not isinstance(v, bool) and v <= LOW for v in _numbers(node))
            if low or any(n in drops for n in node.all_input_nodes):
                drops.add(node)
        elif kind == "add" and any(n in drops for _, n in slots(node)):
            scores, mask = node.args[:2]
            if not isinstance(scores, fx.Node) or not isinstance(mask, fx.Node):
                continue
            scores, mask = (scores, mask) if mask in drops and scores not in positions else (mask, scores)
            node.target, node.args = masked, (scores, mask, False)
            changed = True
            drops.add(node)
        elif kind == "mul" and any(isinstance(v, int | float) and v <= SURE for v in _numbers(node)):
            drops.add(node)  # of an input whose type is not known
        elif kind in _PASSES and any(n in drops for n in node.all_input_nodes):
            drops.add(node)
    if changed:
        network.recompile()
    return network


def _numbers(node: fx.Node) -> list[Any]:
    op = op_of(node)
    if op is None:
        return []
    named = {"input", "other", "value", "min"}
    return [
        v for p, v in zip(op.parameters, node.args, strict=True) if p in named and not isinstance(v, fx.Node | torch.Tensor)
    ]
