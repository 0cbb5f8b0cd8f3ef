"""Ops that keep the last axis of a tensor: they move, repeat or drop whole vectors along it."""

from __future__ import annotations

from math import prod
from typing import Any

from torch import fx

from qfunc.ops.node import attribute, kind_of

_ALWAYS = ("cast", "dropout", "detach", "contiguous", "clone", "identity")


def keeps_last_axis(node: fx.Node) -> bool:
    """Return True if an op moves, repeats or drops whole vectors along the last axis of its input.

    >>> from qfunc.frontend.capture import capture
    >>> import torch
    >>> class Net(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x[:, 1:].transpose(0, 1).reshape(-1, 3, 2).transpose(1, 2)
    >>> [keeps_last_axis(n) for n in capture()(Net()).graph.nodes if n.op == "call_function"]
    [True, False, False, False]
    """
    match kind_of(node):
        case "slice":
            index = attribute(node, "index")
            index = index if isinstance(index, tuple) else (index,)
            return all(isinstance(i, slice) for i in index) and (len(index) < 3 or index[2:] == (slice(None),))
        case "expand":
            return attribute(node, "shape")[-1] == -1 or attribute(node, "shape")[-1] == _last(node.all_input_nodes[0])
        case "unsqueeze":
            return attribute(node, "dim") in (0, 1, 2, -2, -3, -4) and rank_of(node.all_input_nodes[0]) > attribute(node, "dim")
        case "transpose":
            rank = rank_of(node.all_input_nodes[0])
            return rank > 0 and (rank - 1) not in (attribute(node, "dim0") % rank, attribute(node, "dim1") % rank)
        case "reshape":
            return _keeps(node)
    return kind_of(node) in _ALWAYS
