"""Omit empty tensors from concatenations: the cache before the first token, and the rest of a rotation of whole heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx


def omit_empty_tensors(graph: fx.Graph) -> None:
    """Drop the operands of each concatenation that have no elements, in place; one operand alone replaces the result.

    `torch.cat` ignores tensors of shape (0,) whatever the rank of the others is; file formats do not.

    Args:
        graph: A graph from torch.export; its nodes record the shapes of their values.

    >>> class Cache(torch.nn.Module):
    ...     def forward(self, x): return torch.cat([torch.zeros(0), x, x[:, 2:]], 1) + 1
    >>> graph = torch.export.export(Cache(), (torch.ones(3, 2),)).graph
    >>> omit_empty_tensors(graph)
    >>> [n.name for n in graph.nodes]
    ['x', 'add', 'output']
    """
    dropped = set[fx.Node]()
    for node in [n for n in graph.nodes if n.op == "call_function" and _is_cat(n)]:
        operands = node.args[0]
        if any(not isinstance(n, fx.Node) for n in operands):
            continue
        kept = [n for n in operands if not _is_empty(n)]
        if not kept or len(kept) == len(operands):
            continue
        if len(kept) == 1:
            node.replace_all_uses_with(kept[0])
            dropped.add(node)
        else:
            node.args = (kept, *node.args[1:])
        dropped.update(n for n in operands if n not in kept)
    for node in reversed(list(graph.nodes)):
        if node in dropped and node.op not in ("placeholder", "output") and not node.users:
            dropped.update(node.all_input_nodes)
            graph.erase_node(node)


def _is_cat(node: fx.Node) -> bool:
    target: Any = node.target
    return isinstance(target, torch._ops.OpOverload) and target.overloadpacket is torch.ops.aten.cat


def _is_empty(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and any(type(n) is int and n == 0 for n in value.shape)
