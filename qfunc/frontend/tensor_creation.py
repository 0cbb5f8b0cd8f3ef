"""Tensors that a model creates from numbers: their device, and `torch.meshgrid`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from qfunc.graph.arguments import _reads
from qfunc.ops.creation import arange, full

__all__ = ["meshgrid_arguments", "meshgrid", "on_input_device"]


def on_input_device(call: Any, traced: fx.Graph) -> Any:
    """Return the call of an op that creates a tensor, on the device of the model's first input if it names none."""
    if call is None or call[0] not in (arange, full) or call[1][-1] is not None:
        return call
    first = next((n for n in traced.nodes if n.op == "placeholder" and not n.args and _may_be_tensor(n)), None)
    return call[0], (*call[1][:-1], first and _first_entry(first))


def _may_be_tensor(node: fx.Node) -> bool:
    return "val" not in node.meta or isinstance(node.meta["val"], torch.Tensor)


def _first_entry(node: fx.Node) -> fx.Node:
    # Return the first entry of a dict or list that the model reads; the rows of a tensor are on the tensor's device.
    while node.users:
        reads = [user for user in node.users if _reads(user, node)]
        keyed = [user for user in reads if isinstance(user.args[1], str)]
        if not keyed and len(reads) < len(node.users):
            return node
        node = (keyed or reads)[0]
    return node


def meshgrid(emit: Callable[..., fx.Node], tensors: Sequence[fx.Node], indexing: str) -> tuple[fx.Node, ...]:
    """Return the results of `torch.meshgrid`: each of n tensors, reshaped along its axis and expanded to all n lengths.

    >>> graph = fx.Graph()
    >>> emit = lambda function, *given: graph.call_function(function, given)
    >>> [n.args[1] for n in meshgrid(emit, [graph.placeholder("a")], "ij")]
    [(size,)]
    """
    order = [1, 0, *range(2, len(tensors))] if indexing == "xy" and len(tensors) > 1 else range(len(tensors))
    lengths = [_length(emit, tensors[i]) for i in order]
    grids = []
    for axis, tensor in zip(order, tensors, strict=True):
        shape = tuple(-1 if i == axis else 1 for i in range(len(tensors)))
        grids.append(emit(torch.Tensor.expand, emit(torch.reshape, tensor, shape), tuple(lengths)))
    return tuple(grids)


def _length(emit: Callable[..., fx.Node], tensor: fx.Node) -> Any:
    if tensor.target is arange and tensor.args[0] == 0 and tensor.args[2] == 1:
        return tensor.args[1]
    return emit(torch.Tensor.size, tensor, 0)


def meshgrid_arguments(node: fx.Node) -> tuple[list[fx.Node], str] | None:
    """Return the tensors and the indexing of a traced call of `torch.meshgrid`; None if they are not a known list."""
    given: Any = node.args[0] if node.args and isinstance(node.args[0], list | tuple) else node.args
    indexing = node.kwargs.get("indexing") or "ij"
    plain = all(isinstance(v, fx.Node) for v in given) and indexing in ("ij", "xy")
    return (list(given), str(indexing)) if plain and given else None
