"""Ranges of the inputs of an op that a target ties to one scale, as while concatenating boxes and scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.graph.record import path_of
from qfunc.graph.selectors import Context, matches
from qfunc.graph.view import QuantizedModel

UNLIKE = 8.0
"""A tensor whose range is smaller than the common one by this factor loses three bits."""


@frozen
class Join:
    """An op with tied inputs: its path, its input tensors with the names of their sites, and whether the model returns it."""

    op: str
    tensors: tuple[tuple[str, str], ...]
    returned: bool


def joins(view: QuantizedModel) -> tuple[Join, ...]:
    """Return the ops of a quantized model that have two tied inputs or more."""
    target, network = view.record.target, view.float_network
    if target is None or not any("input" in tie.slots for tie in target.ties):
        return ()
    tied = {q.tensor: q.module.site for q in view.quantizers if q.module.site.tie is not None}
    context, found = Context(network, target.ops), []
    for node in network.graph.nodes:
        if any("input" in tie.slots and matches(tie.select, node, context) for tie in target.ties):
            inputs = [_origin(n, tied) for slot, n in context.slots(node) if slot == "input"]
            tensors = {n.name: tied[n.name].name for n in inputs if n.name in tied}
            if len(tensors) > 1 and len({tied[name].tie for name in tensors}) == 1:
                returned = any(user.op == "output" for user in node.users)
                found.append(Join(path_of(network, node), tuple(tensors.items()), returned))
    return tuple(found)


def merged(a: Tensor | None, b: Tensor) -> Tensor:
    """Return the range of both: (low, high), with low <= 0 <= high."""
    return b if a is None else torch.stack([torch.minimum(a[0], b[0]), torch.maximum(a[1], b[1])])


def range_of(value: Tensor) -> Tensor:
    """Return the range of a tensor and 0: (low, high)."""
    low, high = torch.aminmax(value.detach())
    return torch.stack([low.clamp(max=0), high.clamp(min=0)]).float()


def unlike_text(found: Iterable[Join], ranges: Mapping[str, Tensor]) -> str:
    """Return the warning about the join whose ranges differ most, or "" if none differ by more than the factor `UNLIKE`."""
    measured = [(_factor(join, ranges), join) for join in found]
    unlike = sorted(((factor, join) for factor, join in measured if factor > UNLIKE), key=lambda pair: -pair[0])
    if not unlike:
        return ""
    factor, join = unlike[0]
    (_, narrow), (_, wide) = _ends(join, ranges)
    names = dict(join.tensors)
    more = f", as do {len(unlike) - 1} more such ops" if len(unlike) > 2 else ", as does 1 more such op" if unlike[1:] else ""
    do = "Return its inputs as separate outputs" if join.returned else "Give its inputs similar ranges"
    return (
        f"calibrate, op {join.op!r}: found inputs that share one scale although their ranges differ by a factor of "
        f"{factor:.0f}{more}: {_text(ranges[narrow])} of {names[narrow]!r} and {_text(ranges[wide])} of {names[wide]!r}, "
        f"wanted at most {UNLIKE:.0f}. {do}, or leave the op in float by edit.skip(edit.name({join.op!r}))."
    )


def _origin(node: fx.Node, tied: Mapping[str, object]) -> fx.Node:
    # The tensor with a site, before ops that only move its codes.
    while node.name not in tied and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return node


def _ends(join: Join, ranges: Mapping[str, Tensor]) -> tuple[tuple[float, str], tuple[float, str]]:
    spans = [(float(ranges[name][1] - ranges[name][0]), name) for name, _ in join.tensors if name in ranges]
    some: Sequence[tuple[float, str]] = [pair for pair in spans if pair[0]]
    return min(some, default=(0.0, "")), max(some, default=(0.0, ""))


def _factor(join: Join, ranges: Mapping[str, Tensor]) -> float:
    (narrow, _), (wide, _) = _ends(join, ranges)
    return wide / narrow if narrow else 1.0


def _text(span: Tensor) -> str:
    return f"[{float(span[0]):.4g}, {float(span[1]):.4g}]"


__all__ = ["Join", "joins", "merged", "range_of", "unlike_text"]
