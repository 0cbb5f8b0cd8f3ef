"""Replace the addition of a mask, scores + (1 - mask) * -10000, by the op "mask", because no scale fits both terms."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from torch import fx

from qfunc.graph.dtypes import position_nodes
from qfunc.graph.matcher import Rewrite, calls
from qfunc.graph.patterns import is_number, op, tensor
from qfunc.ops.attention import masked
from qfunc.ops.definition import Trait
from qfunc.ops.node import has, kind_of, op_of
from qfunc.passes.rewrite import rewrite

LOW = -50.0
"""The largest value that masks a score: Swin adds -100, BERT -10000, other models the least float."""


MASK_FACTOR = -1000.0
"""The largest factor that identifies a mask of unknown dtype: models multiply no activation by so low a number."""


def match_masks(network: fx.GraphModule) -> fx.GraphModule:
    """Replace each addition of a mask by the op "mask", in place."""
    positions = position_nodes(network)
    masks = _masks(network.graph, positions)
    if not masks:
        return network
    mask = tensor("mask", lambda n: n in masks)
    # Of two masks the one that depends on positions alone is the second operand.
    scores = (tensor("scores", lambda n: n not in positions), tensor("scores"))
    rewrites = tuple(
        Rewrite("mask", op("add", s, mask, commutative=True), calls(masked, "scores", "mask", False)) for s in scores
    )
    return rewrite(network, rewrites, nodes=[n for n in network.graph.nodes if n not in positions])


def _masks(graph: fx.Graph, positions: Container[fx.Node]) -> set[fx.Node]:
    # Return the nodes with values that mask others.
    masks: set[fx.Node] = set()
    for node in (n for n in graph.nodes if n.op.startswith("call")):
        kind, reads_mask = kind_of(node), any(n in masks for n in node.all_input_nodes)
        if node in positions:
            low = reads_mask or any(v <= LOW for v in _numbers(node))
        else:
            low = reads_mask and (has(node, Trait.KEEPS_LOW) or has(node, Trait.VIEW))
            low |= kind == "mul" and any(v <= MASK_FACTOR for v in _numbers(node))  # the dtype of the input is unknown
        if low:
            masks.add(node)
    return masks


def _numbers(node: fx.Node) -> list[Any]:
    # The numbers among the operands and bounds of an op.
    record = op_of(node)
    if record is None:
        return []
    parameters = {"input", "other", "value", "min"}
    return [v for p, v in zip(record.parameters, node.args, strict=True) if p in parameters and is_number(v)]
