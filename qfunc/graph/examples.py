"""What the tensors of a graph owe to the examples of a batch: nothing, or an axis; as far as the graph alone decides it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch import fx

from qfunc.graph.record import record_of
from qfunc.ops.definition import Trait
from qfunc.ops.node import has, kind_of, op_of, parameters_of, slots, traits
from qfunc.ops.sizes import is_number

Axes = Mapping[fx.Node, int]
"""The axis of the examples by node; tensors without examples, and tensors whose axis the graph leaves open, are absent."""

_KEEPING = ("avg_pool", "max_pool", "adaptive_avg_pool", "dropout", "matmul", "concat")
_MOVING = ("concat", "flip", "roll")
"""Ops that move entries along an axis, and have as many places for examples as before."""


def axes_of_examples(model: fx.GraphModule) -> dict[fx.Node, int]:
    """Return the axis of the examples of each tensor, which is the first axis of every input.

    An op whose result has the examples elsewhere, or in several places, ends the search: its result is absent.

    >>> from torch import nn
    >>> class Net(nn.Module):
    ...     def forward(self, x):
    ...         return x.permute(1, 0, 2).relu()
    >>> from qfunc.frontend.capture import capture
    >>> {n.name: axis for n, axis in axes_of_examples(capture()(Net())).items()}
    {'x': 0, 'permute': 1, 'relu': 1}
    """
    record = record_of(model)
    if record is not None and (record.batch == 1 or any(sizes[:1] == (1,) for _, sizes in record.sizes)):
        return {}  # the program takes one example
    found: dict[fx.Node, int] = {}
    created = created_nodes(model.graph)
    for node in model.graph.nodes:
        known = all(n in found or n in created for _, n in slots(node))
        axis = 0 if node.op == "placeholder" else _axis(node, found) if known else None
        if axis is not None and not is_number(node):
            found[node] = axis
    return found


def created_nodes(graph: fx.Graph) -> frozenset[fx.Node]:
    """Return the nodes that are computed from constants and sizes only, as a grid of positions is.

    >>> import torch
    >>> graph = fx.symbolic_trace(lambda x: x + torch.ones(2)).graph
    >>> [n.name for n in created_nodes(graph)]
    ['_tensor_constant0']
    """
    found = set[fx.Node]()
    for node in graph.nodes:
        read = [n for _, n in slots(node)]
        if not read and not has(node, Trait.CREATES):  # a comparison has operands, but no slots
            read = [n for n in node.all_input_nodes if not is_number(n) and kind_of(n) != "size"]
        if node.op not in ("placeholder", "output") and found.issuperset(read):
            found.add(node)
    return frozenset(found)


def mixes_examples(node: fx.Node, axes: Axes) -> bool:
    """Return True if one example of an op's result depends on other examples, by the graph alone.

    >>> import torch
    >>> from torch import nn
    >>> class Net(nn.Module):
    ...     def forward(self, x):
    ...         return x - x.mean(), x - x.mean(1, keepdim=True), x @ x.t()
    >>> from qfunc.frontend.capture import capture
    >>> model = capture()(Net())
    >>> axes = axes_of_examples(model)
    >>> [n.name for n in model.graph.nodes if mixes_examples(n, axes)]
    ['mean', 'matmul']
    """
    read = [axes[n] for _, n in slots(node) if n in axes]
    kind = kind_of(node)
    if kind == "matmul":
        return len(set(read)) > 1
    return bool(read) and (_reduces(node) or _works_along(node)) and _covers(node, read[0])


def selects_examples(node: fx.Node, axes: Axes) -> bool:
    """Return True if an op takes some of the examples of a batch, as `x[0]` and `x.chunk(2)` do."""
    read, kind = [axes[n] for _, n in slots(node) if n in axes], kind_of(node)
    if not read or kind not in ("slice", "chunk", "split"):
        return False
    if kind == "slice":
        return not _is_part(node) and _after_index(_argument(node, "index"), read[0]) is None
    return _covers(node, read[0])


def _is_part(node: fx.Node) -> bool:
    # True for one of the tensors into which `chunk` divided a tensor.
    return isinstance(node.args[0], fx.Node) and kind_of(node.args[0]) in ("chunk", "split")


def _argument(node: fx.Node, *names: str) -> Any:
    op = op_of(node)
    given = dict(zip(op.parameters, node.args, strict=True)) if op is not None else {}
    return next((given[name] for name in names if name in given), None)


def _reduces(node: fx.Node) -> bool:
    return "keepdim" in parameters_of(node)


def _works_along(node: fx.Node) -> bool:
    # True if an entry of the result depends on several entries along `dim`, or on one at another place.
    moves = Trait.MOVES_VALUES in traits(node)
    return not _reduces(node) and (kind_of(node) in _MOVING or (not moves and "dim" in parameters_of(node)))


def _covers(node: fx.Node, axis: int) -> bool:
    # True if an op works along the axis of the examples; negative axes count from the end, where the rank is not known.
    dim = _argument(node, "dim", "dims")
    if dim is None or dim in ((), []):
        return _reduces(node)
    return axis in (dim if isinstance(dim, list | tuple) else (dim,))


def _axis(node: fx.Node, axes: Axes) -> int | None:
    read = [axes[n] for _, n in slots(node) if n in axes]
    if len(set(read)) != 1:
        return None
    (axis,), kind = set(read), kind_of(node)
    has = traits(node)
    if _reduces(node) or _works_along(node):
        return _after_dims(node, axis)
    if kind == "transpose":
        return _after_transpose(node, axis)
    if kind in ("chunk", "split"):
        return None if _covers(node, axis) else axis
    if kind == "slice":
        if _is_part(node):
            return axis
        after = _after_index(_argument(node, "index"), axis)
        return None if after is None or after < 0 else after
    if kind == "unsqueeze":
        dim = _argument(node, "dim")
        return None if not isinstance(dim, int) or dim < -1 else axis + (0 <= dim <= axis)
    if kind == "flatten":
        start = _argument(node, "start_dim")
        return axis if isinstance(start, int) and axis < start else None
    if kind == "reshape":
        shape = _argument(node, "shape")
        first = shape[0] if isinstance(shape, list | tuple) and shape else None
        return 0 if axis == 0 and isinstance(first, fx.Node) and kind_of(first) == "size" and first.args[1:] == (0,) else None
    kept = Trait.ELEMENTWISE in has or Trait.WEIGHTED in has or Trait.NORM in has or Trait.ACTIVATION in has
    return axis if kept or kind in _KEEPING else None


def _after_dims(node: fx.Node, axis: int) -> int | None:
    dim = _argument(node, "dim", "dims")
    dims = tuple(dim) if isinstance(dim, list | tuple) else (dim,)
    from_end = axis > 0 and any(isinstance(d, int) and d < 0 for d in dims)
    if _covers(node, axis) or from_end:
        return None
    if not _reduces(node) or _argument(node, "keepdim"):
        return axis
    return axis - sum(isinstance(d, int) and 0 <= d < axis for d in dims)


def _after_transpose(node: fx.Node, axis: int) -> int | None:
    dims = _argument(node, "dims")
    if isinstance(dims, list | tuple) and all(isinstance(d, int) for d in dims):
        order = [d + len(dims) if d < 0 else d for d in dims]
        return order.index(axis) if axis in order else None
    pair = [_argument(node, "dim0"), _argument(node, "dim1")]
    if all(isinstance(d, int) and d >= 0 for d in pair):
        return pair[1 - pair.index(axis)] if axis in pair else axis
    return None


def _after_index(index: Any, axis: int) -> int | None:
    # The axis of the examples after x[index]; None if the index selects examples; -1 if it is not known.
    before, after = 0, 0
    for item in index if isinstance(index, tuple | list) else (index,):
        if item is Ellipsis:
            return -1
        if item is None:
            after += 1
            continue
        if before == axis:
            return after if _is_whole(item) else None
        before, after = before + 1, after + isinstance(item, slice)
    return after + axis - before


def _is_whole(item: Any) -> bool:
    # True for x[:] and for x[0:MAX], as torch.export writes it.
    if not isinstance(item, slice) or item.step not in (None, 1) or item.start not in (None, 0):
        return False
    return item.stop is None or (isinstance(item.stop, int) and item.stop == sys.maxsize)
