"""Decompose scaled dot-product attention into matmul, scale, mask and softmax, unless a rule names sdpa."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from torch import fx

from qfunc.errors import CaptureError
from qfunc.graph.record import NodeInfo, Record, attach, path_of, record_of
from qfunc.graph.selectors import names_kind
from qfunc.ops.attention import repeat_heads
from qfunc.ops.decompositions import attend
from qfunc.ops.node import attribute, kind_of
from qfunc.specs import Target


def decompose_attention(network: fx.GraphModule, target: Target) -> fx.GraphModule:
    """Decompose each `sdpa` of a network, in place, unless a rule of the target names that kind.

    Raises:
        CaptureError: attention with dropout in evaluation mode.
    """
    record = record_of(network)
    if record is None or any(names_kind(rule.select, "sdpa") for rule in target.rules):
        return network
    for node in [n for n in network.graph.nodes if n.op == "call_function" and kind_of(n) == "sdpa"]:
        _decompose(network, node, record)
    network.graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))
    network.recompile()
    return attach(network, evolve(record, facts=dict(record.facts)))


def _decompose(network: fx.GraphModule, node: fx.Node, record: Record) -> None:
    graph, path = network.graph, path_of(network, node)
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    query, key, value, mask, dropout, causal, factor, enable_gqa = (attribute(node, n) for n in names)
    if dropout:
        raise CaptureError(
            where=f"op {path!r}",
            found=f"scaled_dot_product_attention with dropout_p={dropout} in evaluation mode",
            wanted="dropout_p=0.0, or dropout in training only",
            do="Pass dropout_p=self.p if self.training else 0.0.",
        )
    source = record.facts.get(node.name, NodeInfo(path))

    def emit(function: Any, *arguments: Any) -> fx.Node:
        name = function.__name__
        result = graph.create_node("call_function", function, arguments, {}, f"{node.name}_{name}")
        record.facts[result.name] = evolve(source, path=f"{source.path}.{result.name.removeprefix(f'{node.name}_')}")
        return result

    with graph.inserting_before(node):
        if enable_gqa:
            key, value = (emit(repeat_heads, t, query) for t in (key, value))
        result, _ = attend(emit, query, key, value, (mask,), causal, factor)
    node.replace_all_uses_with(result)
    graph.erase_node(node)
    # The last op keeps the name of the decomposed op.
    result.name, old = node.name, result.name
    record.facts[result.name] = source
    record.facts.pop(old, None)
