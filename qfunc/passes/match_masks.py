"""Name masks: scores + (1 - mask) * -10000 is the op "mask", because no scale fits both terms; a softmax may include one."""

from __future__ import annotations

import itertools
from collections.abc import Container
from typing import Any

import torch
from torch import Tensor, fx

from qfunc.graph.constants import value_of
from qfunc.graph.dtypes import position_nodes
from qfunc.graph.matcher import Call, Rewrite, calls
from qfunc.graph.patterns import Match, OpPattern, Var, is_number, op, tensor
from qfunc.graph.selectors import names_kind
from qfunc.ops.attention import masked, masked_softmax
from qfunc.ops.definition import Trait
from qfunc.ops.node import has, kind_of, op_of
from qfunc.passes.rewrite import rewrite
from qfunc.specs import Target

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


def fuse_masked_softmax(network: fx.GraphModule, target: Target) -> fx.GraphModule:
    """Replace each softmax along the last axis of scores with a constant mask, in place, unless no rule names the op.

    A mask chooses a value of at most -50, beside which the exponentials of the other scores vanish. One that drops a whole row
    stays: the softmax of equal numbers is not that of none.
    """
    if not any(names_kind(rule.select, "masked_softmax") for rule in target.rules):
        return network
    return rewrite(network, _MASKED)


_SCORES, _DIM = tensor("scores"), Var("dim", lambda v: v == -1, "-1")
_LOW = Var("low", lambda v: is_number(v) and v <= LOW, f"a number of at most {LOW:g}")


def _is_constant(node: fx.Node) -> bool:
    pending = [node]
    while pending:
        current = pending.pop()
        if current.op != "get_attr" and (op_of(current) is None or not current.all_input_nodes or current.kwargs):
            return False
        pending += current.all_input_nodes
    return True


def _dropped(found: Match) -> Tensor:
    # The entries that a mask drops: where `drop` is True, `keep` is False or `term` is low.
    network = found.root.graph.owning_module
    assert network is not None
    name = next(n for n in ("drop", "keep", "term") if found.get(n) is not None)
    value = value_of(network, found[name], {})
    return value if name == "drop" else value.logical_not() if value.dtype == torch.bool else value <= LOW


def _unlike_a_mask(found: Match) -> str:
    drop, network = _dropped(found), found.root.graph.owning_module
    assert network is not None
    value = drop if found.get("term") is None else value_of(network, found["term"], {})
    if value.dtype != torch.bool and not (bool(drop.any()) and bool((value[~drop] == 0).all())):
        return f"the constant has other numbers than 0 and those of at most {LOW:g}"
    return "the mask drops all entries of a row" if bool(drop.all(-1).any()) else ""


def _fused(found: Match) -> Call:
    drop = found.get("drop")
    if drop is None or drop.op != "get_attr":
        network = found.root.graph.owning_module
        assert network is not None
        name = next(n for i in itertools.count() if not hasattr(network, n := f"dropped_{i}"))
        network.register_buffer(name, _dropped(found))
        with found.root.graph.inserting_before(found.root):
            drop = found.root.graph.get_attr(name)
    return Call(masked_softmax, (found["scores"], drop))


def _constant(name: str) -> Var:
    return tensor(name, _is_constant, "a constant")


def _rewrite(masked_scores: OpPattern) -> Rewrite:
    return Rewrite("masked_softmax", op("softmax", masked_scores, _DIM), _fused, check=_unlike_a_mask)


_MASKED = (
    Rewrite(
        "masked_softmax",
        op("softmax", op("mask", _SCORES, None, True), _DIM),
        lambda found: Call(masked_softmax, (found["scores"], None)),
    ),
    _rewrite(op("where", _constant("drop"), _LOW, _SCORES)),
    _rewrite(op("where", _constant("keep"), _SCORES, _LOW)),
    _rewrite(op("mask", _SCORES, _constant("term"), False)),
    _rewrite(op("add", _SCORES, _constant("term"), commutative=True)),
)
"""The causal mask, a choice by a constant, and the addition of a constant: of booleans that keep, or of 0 and low numbers."""
