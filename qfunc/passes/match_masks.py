"""Replace the addition of a mask, scores + (1 - mask) * -10000, by the op "mask", because no scale fits both terms."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from qfunc.graph.dtypes import position_nodes
from qfunc.ops.attention import masked
from qfunc.ops.definition import Trait
from qfunc.ops.node import has, kind_of, op_of, slots

LOW = -50.0
"""The largest value that masks a score: Swin adds -100, BERT -10000, other models the least float."""


MASK_FACTOR = -1000.0
"""The largest factor that identifies a mask of unknown dtype: models multiply no activation by so low a number."""


_LOW_PRESERVING = ("add", "mask", "cast", "clip", "maximum")
"""Ops that keep low values low, besides views: additions, and the bounds that keep masks finite."""


def match_masks(network: fx.GraphModule) -> fx.GraphModule:
    """Replace each addition of a mask by the op "mask", in place."""
    positions = position_nodes(network)
    masks: set[fx.Node] = set()  # nodes with values that mask others
    changed = False
    for node in network.graph.nodes:
        if not node.op.startswith("call"):
            continue
        kind = kind_of(node)
        if node in positions:
            low = any(isinstance(v, int | float) and not isinstance(v, bool) and v <= LOW for v in _numbers(node))
            if low or any(n in masks for n in node.all_input_nodes):
                masks.add(node)
        elif kind == "add" and any(n in masks for _, n in slots(node)):
            scores, mask = node.args[:2]
            if not isinstance(scores, fx.Node) or not isinstance(mask, fx.Node):
                continue
            scores, mask = (scores, mask) if mask in masks and scores not in positions else (mask, scores)
            node.target, node.args = masked, (scores, mask, False)
            changed = True
            masks.add(node)
        elif kind == "mul" and any(isinstance(v, int | float) and v <= MASK_FACTOR for v in _numbers(node)):
            masks.add(node)  # the dtype of the input is unknown
        elif any(n in masks for n in node.all_input_nodes) and (kind in _LOW_PRESERVING or has(node, Trait.VIEW)):
            masks.add(node)
    if changed:
        network.recompile()
    return network


def _numbers(node: fx.Node) -> list[Any]:
    # The numbers among the operands and bounds of an op.
    op = op_of(node)
    if op is None:
        return []
    parameters = {"input", "other", "value", "min"}
    return [
        v
        for p, v in zip(op.parameters, node.args, strict=True)
        if p in parameters and not isinstance(v, fx.Node | torch.Tensor)
    ]
