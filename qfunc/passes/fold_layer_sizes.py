"""Replace the sizes that a layer's weight determines by numbers, as a program of torch.export has them.

The last axis of a linear layer's result, and the channels of a convolution's, do not depend on the inputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from qfunc.graph.constants import read_attr
from qfunc.ops.definition import Trait
from qfunc.ops.indexing import element
from qfunc.ops.node import attribute, has, kind_of, op_of
from qfunc.ops.sizes import is_number

_KEEP = (
    "linear", "transpose", "split", "chunk", "sdpa", "softmax", "pad", "resize", "max_pool", "avg_pool", "adaptive_avg_pool",
    "adaptive_max_pool", "flip", "roll", "batch_norm", "dropout",
)  # fmt: skip
"""Kinds whose results have the rank of their input."""
_REDUCTIONS = ("mean", "sum", "amax", "amin", "global_avg_pool")


def fold_layer_sizes(network: fx.GraphModule) -> fx.GraphModule:
    """Replace such sizes, and the numbers that are computed from them alone, in place.

    >>> from qfunc.frontend.capture import capture
    >>> class Mean(torch.nn.Linear):
    ...     def forward(self, x): return (y := super().forward(x)) / y.size(-1) ** 0.5
    >>> [n.args[1] for n in fold_layer_sizes(capture()(Mean(3, 4))).graph.nodes if kind_of(n) == "div"]
    [2.0]
    """
    known: dict[fx.Node, Any] = {}
    sized = any(n.target is torch.Tensor.size for n in network.graph.nodes)
    most = _most_axes(network.graph) if sized else {}
    for node in network.graph.nodes:
        if node.op != "call_function":
            continue
        value = _computed(node, known, most) if is_number(node) else None
        if value is not None:
            known[node] = value
        elif not known.keys().isdisjoint(node.all_input_nodes):
            changed: Any = fx.map_arg((node.args, node.kwargs), lambda n: known.get(n, n))
            node.args, node.kwargs = changed
    if known:
        network.graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))
        network.recompile()
    return network


def _computed(node: fx.Node, known: dict[fx.Node, Any], most: dict[fx.Node, int]) -> float | None:
    target: Any = node.target
    source: Any = node.args[0] if node.args else None
    if target is torch.Tensor.size and len(node.args) == 2 and isinstance(node.args[1], int):
        return _size(source, node.args[1], most)
    if target is element and isinstance(source, fx.Node) and source.target is torch.Tensor.size:
        axis = node.args[1]
        return _size(source.args[0], axis, most) if len(source.args) == 1 and isinstance(axis, int) else None
    if not node.all_input_nodes or not known.keys() >= set(node.all_input_nodes):
        return None
    given: Any = fx.map_arg((node.args, node.kwargs), known.__getitem__)
    value = target(*given[0], **given[1])
    return value if isinstance(value, int | float) else None


def _size(node: Any, axis: int, most: dict[fx.Node, int]) -> int | None:
    # The size of an axis of a layer's result, also after ops that keep its shape.
    while isinstance(node, fx.Node) and op_of(node) is not None:
        if has(node, Trait.WEIGHTED):
            weight = attribute(node, "weight") if kind_of(node) in ("linear", "conv") else None
            if not isinstance(weight, fx.Node) or weight.op != "get_attr" or node.graph.owning_module is None:
                return None
            shape = read_attr(node.graph.owning_module, weight).shape
            rank = most.get(attribute(node, "input")) if kind_of(node) == "linear" else None
            last = 1 - len(shape) if kind_of(node) == "conv" else -1
            return int(shape[0]) if axis == last or (rank is not None and axis == rank - 1) else None
        node = _same_shape(node)
    return None


def _most_axes(graph: fx.Graph) -> dict[fx.Node, int]:
    # The largest rank that a value can have: recurrent layers and convolutions take tensors with and without a batch.
    most: dict[fx.Node, int] = {}
    for node in graph.nodes:
        found = _most_axes_of(node, most)
        if found is not None:
            most[node] = found
    return most


def _most_axes_of(node: fx.Node, most: dict[fx.Node, int]) -> int | None:
    first: Any = node.args[0] if node.args else None
    if node.op == "get_attr" and node.graph.owning_module is not None:
        return read_attr(node.graph.owning_module, node).ndim
    if node.target is element and isinstance(first, fx.Node) and has(first, Trait.RECURRENT):
        return 3 if node.args[1] == 0 else None
    kind = kind_of(node)
    if kind == "slice":
        return _of_part(node, most)
    if kind == "flatten":
        start, end = node.args[1:]
        if end != -1 or not isinstance(start, int):
            return None
        return start + 1 if start >= 0 else most[first] + start + 1 if first in most else None
    if node.target is torch.unflatten:
        return most[first] + len(node.args[2]) - 1 if first in most else None  # type: ignore[arg-type]
    if kind in ("reshape", "expand"):
        return len(node.args[1]) if isinstance(node.args[1], tuple | list) else None
    if kind in ("conv", "conv_transpose"):
        return most.get(attribute(node, "weight"))
    if kind in _REDUCTIONS:
        dims, keeps = attribute(node, "dim"), attribute(node, "keepdim")
        gone = 0 if keeps else len(dims) if isinstance(dims, tuple | list) else 1
        return most[first] - gone if first in most and isinstance(dims, int | tuple | list) and dims != () else None
    if kind in ("concat", "matmul") or has(node, Trait.ELEMENTWISE):
        ranks = [most.get(n) for n in node.all_input_nodes if not is_number(n)]
        known = [r for r in ranks if r is not None]
        return max(known) if known and len(known) == len(ranks) else None
    return most.get(first) if kind in _KEEP or has(node, Trait.NORM) else None


def _of_part(node: fx.Node, most: dict[fx.Node, int]) -> int | None:
    source, index = node.args[:2]
    rank = most.get(source) if isinstance(source, fx.Node) else None
    if rank is None or kind_of(source) in ("split", "chunk"):  # type: ignore[arg-type]
        return rank
    entries: Any = index if isinstance(index, tuple) else (index,)
    if any(isinstance(i, fx.Node) and not is_number(i) for i in entries):
        return None
    return rank - sum(isinstance(i, int | fx.Node) for i in entries) + sum(i is None for i in entries)


def _same_shape(node: fx.Node) -> Any:
    keeps = has(node, Trait.ELEMENTWISE) and len(node.all_input_nodes) == 1
    return node.all_input_nodes[0] if keeps else None
