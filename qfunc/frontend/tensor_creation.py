"""Tensors that a model creates from numbers: their device, `torch.meshgrid` and `torch.tensor`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from qfunc.graph.arguments import _reads, flatten
from qfunc.ops.creation import arange, cast_like, full, full_like
from qfunc.ops.sizes import is_number


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


_DTYPE_AT: dict[Any, int] = {arange: 3, full: 2, full_like: 2}
"""The position of the dtype among the canonical arguments."""


def dtype_like(call: Any) -> fx.Node | None:
    """Return the x of an op that creates a tensor in `x.dtype`, which is known at run time only; None for another call."""
    return _tensor_of_dtype(call[1][_DTYPE_AT[call[0]]]) if call is not None and call[0] in _DTYPE_AT else None


def created_like(call: Any, like: fx.Node, emit: Callable[..., fx.Node], env: Mapping[fx.Node, Any]) -> fx.Node:
    """Return the result of an op that creates a tensor in the dtype of another one: `torch.zeros(4, dtype=x.dtype)`.

    Args:
        call: The canonical call.
        like: The traced x.
        emit: Emits an op.
        env: Traced nodes and their values.
    """
    at = _DTYPE_AT[call[0]]
    numbers, device = (fx.map_arg(part, env.__getitem__) for part in (call[1][:at], call[1][at + 1 :]))
    if call[0] is full:
        return emit(full, *numbers, None, env[like])
    own = torch.float64 if any(isinstance(v, float) for v in numbers) else torch.int64  # both hold the numbers exactly
    return emit(cast_like, emit(call[0], *numbers, own, *device), env[like])


def _tensor_of_dtype(dtype: Any) -> fx.Node | None:
    # The x of a traced x.dtype.
    found = dtype.args[0] if isinstance(dtype, fx.Node) and dtype.args[1:] == ("dtype",) else None
    return found if isinstance(found, fx.Node) else None


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


def tensor_of_numbers(
    node: fx.Node, emit: Callable[..., fx.Node], constant: Callable[[torch.Tensor], fx.Node], env: Mapping[fx.Node, Any]
) -> fx.Node | None:
    """Return the result of a traced `torch.tensor(numbers)`: a constant, or joined tensors of sizes; None for another call.

    Args:
        node: The traced call, which has a size among its numbers, or the dtype or device of a tensor.
        emit: Emits an op.
        constant: Emits a constant.
        env: Traced nodes and their values.
    """
    if node.op != "call_function" or node.target is not torch.tensor or len(node.args) != 1:
        return None
    data: Any = node.args[0]
    dtype: Any = node.kwargs.get("dtype")
    like = _tensor_of_dtype(dtype)
    leaves, given = flatten(data), dtype if isinstance(dtype, torch.dtype) else None
    if (isinstance(dtype, fx.Node) and like is None) or not all(isinstance(v, int | float) or _is_size(v) for v in leaves):
        return None
    if not any(isinstance(v, fx.Node) for v in leaves):
        made = constant(torch.tensor(data, dtype=given))
    else:
        kind = given or (torch.get_default_dtype() if any(map(_is_fraction, leaves)) else torch.int64)
        device = on_input_device((full, (None,)), node.graph)[1][-1]
        first = None if device is None else env[device]
        numbers = [emit(full, (1,), env[v] if isinstance(v, fx.Node) else v, kind, first) for v in leaves]
        shape: list[int] = []
        while isinstance(data, list | tuple):
            shape, data = [*shape, len(data)], data[0]
        made = emit(torch.reshape, emit(torch.cat, numbers, 0), tuple(shape))
    return made if like is None else emit(cast_like, made, env[like])


def _is_size(value: Any) -> bool:
    return isinstance(value, fx.Node) and is_number(value)


def _is_fraction(value: Any) -> bool:
    # x.shape[0] / 2 and 0.5 * x.shape[0]
    if not isinstance(value, fx.Node):
        return isinstance(value, float)
    return value.target in (operator.truediv, "truediv") or any(map(_is_fraction, value.args))


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
