"""Attention as ops of its own: two products, a scale, masks, a softmax; so that both products can be quantized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import evolve
from torch import fx

from qfunc.errors import CaptureError
from qfunc.graph.computed import fold_computed
from qfunc.graph.float_ops import masked, repeat_heads, scaled
from qfunc.graph.guards import name_guards
from qfunc.graph.masking import name_masks
from qfunc.graph.products import open_products
from qfunc.graph.record import Fact, Record, attach, path_of, record_of
from qfunc.graph.vocabulary import attribute, kind_of
from qfunc.graph.written_norms import name_norms
from qfunc.specs import Target
from qfunc.specs import selectors as s

Emit = Callable[..., Any]
"""emit(function, *arguments) -> the value of a new call."""


def attend(
    emit: Emit,
    query: Any,
    key: Any,
    value: Any,
    masks: tuple[Any, ...] = (),
    causal: bool = False,
    factor: float | None = None,
    dropped: Callable[[Any], Any] | None = None,
) -> tuple[Any, Any]:
    """The value of softmax(factor * query key^T + masks) value, and the softmax.

    Args:
        emit: Writes a call.
        query: [..., L, E]; key and value are [..., S, E].
        masks: What to add to the scores, or booleans: True takes part.
        causal: Whether position i sees positions up to i only.
        factor: None for 1 / sqrt(E).
        dropped: What becomes of the softmax in training.

    >>> q = torch.ones(1, 2, 3)
    >>> attend(lambda f, *a: f(*a), q, q, q)[0].shape
    torch.Size([1, 2, 3])
    """
    scores = emit(scaled, emit(torch.matmul, query, emit(torch.transpose, key, -2, -1)), query, factor)
    for mask, triangle in ((None, True),) * causal + tuple((m, False) for m in masks if m is not None):
        scores = emit(masked, scores, mask, triangle)
    weights = emit(torch.softmax, scores, -1)
    return emit(torch.matmul, weights if dropped is None else dropped(weights), value), weights


def prepared(network: fx.GraphModule, target: Target) -> fx.GraphModule:
    """The (own) network as placement wants it: products opened, norms, masks, guards named, computed weights constants."""
    named = name_norms(open_products(open_attention(network, target)))
    return name_guards(name_masks(fold_computed(named)))


def open_attention(network: fx.GraphModule, target: Target) -> fx.GraphModule:
    """The (own) network with each `sdpa` opened, unless a rule of the target names that kind.

    Raises:
        CaptureError: attention that drops at random in evaluation, too.
    """
    record = record_of(network)
    if record is None or any(_names(rule.select, "sdpa") for rule in target.rules):
        return network
    for node in [n for n in network.graph.nodes if kind_of(n) == "sdpa"]:
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
    source = record.facts.get(node.name, Fact(path))

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


__all__ = ["attend", "open_attention", "prepared"]
