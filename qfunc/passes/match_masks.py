"""Masks that are added: scores + (1 - mask) * -10000 is the op "mask", for no scale fits scores and what drops them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from qfunc.graph.dtypes import position_nodes
from qfunc.ops.attention import masked
from qfunc.ops.definition import Trait
from qfunc.ops.node import has, kind_of, op_of, slots

LOW = -50.0
"""What is added to drop a score is at most this: Swin takes -100, BERT -10000, others the least float."""


SURE = -1000.0
"""No activation is multiplied by this or less."""


_LOW_IF_INPUT = ("add", "mask", "cast", "clip", "maximum")
"""Besides views: what they add, and the bounds by which models keep masks finite, leave low values low."""


def match_masks(network: fx.GraphModule) -> fx.GraphModule:
    """The (own) network in which each addition of a mask is the op "mask"."""
    positions = position_nodes(network)
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
        elif any(n in drops for n in node.all_input_nodes) and (kind in _LOW_IF_INPUT or has(node, Trait.VIEW)):
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
