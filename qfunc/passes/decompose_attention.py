"""Decompose scaled dot-product attention into matmul, scale, mask and softmax, unless a rule names sdpa."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from torch import fx

from qfunc.errors import CaptureError
from qfunc.graph.record import NodeInfo, Record, attach, path_of, record_of
from qfunc.ops.attention import repeat_heads
from qfunc.ops.decompositions import attend
from qfunc.ops.node import attribute, kind_of
from qfunc.specs import Target
from qfunc.specs import selectors as s

__all__ = ["decompose_attention"]


def decompose_attention(network: fx.GraphModule, target: Target) -> fx.GraphModule:
    """The (own) network with each `sdpa` opened, unless a rule of the target names that kind.

    Raises:
        CaptureError: attention that drops at random in evaluation, too.
    """
    record = record_of(network)
    if record is None or any(_names(rule.select, "sdpa") for rule in target.rules):
        return network
    for node in [n for n in network.graph.nodes if n.op == "call_function" and kind_of(n) == "sdpa"]:
        _open(network, node, record)
    network.graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))
    network.recompile()
    return attach(network, evolve(record, facts=dict(record.facts)))


def _open(network: fx.GraphModule, node: fx.Node, record: Record) -> None:
    graph, path = network.graph, path_of(network, node)
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    query, key, value, mask, dropout, causal, factor, grouped = (attribute(node, n) for n in names)
    if dropout:
        raise CaptureError(
            where=f"op {path!r}",
            found=f"scaled_dot_product_attention with dropout_p={dropout} in evaluation mode",
            wanted="dropout_p=0.0, or dropout in training only",
            do="Pass dropout_p=self.p if self.training else 0.0.",
        )
    source = record.facts.get(node.name, NodeInfo(path))

    def emit(function: Any, *arguments: Any) -> fx.Node:
        word = function.__name__
        made = graph.create_node("call_function", function, arguments, {}, f"{node.name}_{word}")
        record.facts[made.name] = evolve(source, path=f"{source.path}.{made.name.removeprefix(f'{node.name}_')}")
        return made

    with graph.inserting_before(node):
        if grouped:
            key, value = (emit(repeat_heads, t, query) for t in (key, value))
        made, _ = attend(emit, query, key, value, (mask,), causal, factor)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    # The last product bears the name of the whole.
    made.name, old = node.name, made.name
    record.facts[made.name] = source
    record.facts.pop(old, None)


def _names(selector: Any, kind: str) -> bool:
    match selector:
        case s.Op(kinds):
            return kind in kinds
        case s.AllOf(of) | s.AnyOf(of):
            return any(_names(one, kind) for one in of)
        case s.Not(of) | s.From(of) | s.AnyInput(of):
            return _names(of, kind)
    return False
