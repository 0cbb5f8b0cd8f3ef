"""The batch axis and the memory order of each tensor of a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.errors import CalibrationError, first_line
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.graph.record import path_of


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Return sum a b, a scalar, of tensors of the same shape.

    >>> inner(torch.ones(2, 3), torch.full((2, 3), 2.0)).item()
    12.0
    """
    if a.dtype != b.dtype or a.stride() != b.stride():
        return (a * b).sum()
    return torch.dot(flatten_memory(a), flatten_memory(b))


def is_channels_last(x: Tensor) -> bool:
    """Return True if channels, axis 1 of images, are contiguous in memory."""
    return x.ndim == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


def flatten_memory(x: Tensor, like: Tensor | None = None) -> Tensor:
    """Return the elements [n] in the memory order of `like`, by default of x itself.

    >>> x = torch.arange(8.0).view(1, 2, 2, 2)
    >>> flatten_memory(x, x.contiguous(memory_format=torch.channels_last)).tolist()
    [0.0, 4.0, 1.0, 5.0, 2.0, 6.0, 3.0, 7.0]
    """
    return (x.permute(0, 2, 3, 1) if is_channels_last(x if like is None else like) else x).reshape(-1)


def unflatten_memory(line: Tensor, like: Tensor) -> Tensor:
    """Return a view of a flat tensor in the shape and the memory order of `like`.

    >>> unflatten_memory(flatten_memory(torch.eye(2)), torch.empty(2, 2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if not is_channels_last(like):
        return line.view(like.shape)
    n, c, h, w = like.shape
    return line.view(n, h, w, c).permute(0, 3, 1, 2)


_FEW, _FEWER = 3, 2


@frozen
class BatchAxis:
    """A tensor with `each` consecutive entries per image along `axis`, for example windows.

    `channels_last` says how a tensor of three images is in memory; one of a single image may be in either order.

    >>> rows = BatchAxis(axis=1, each=2)
    >>> rows.split(torch.zeros(5, 6, 7)).shape, rows.join(torch.zeros(3, 2, 5, 7)).shape
    (torch.Size([3, 2, 5, 7]), torch.Size([5, 6, 7]))
    """

    axis: int = 0
    each: int = 1
    channels_last: bool = False

    def split(self, value: Tensor) -> Tensor:
        """Return a tensor as [images, each, ...]."""
        first = value.movedim(self.axis, 0)
        return first.reshape(-1, self.each, *first.shape[1:])

    def join(self, rows: Tensor) -> Tensor:
        """Return the tensor of [images, each, ...]: the inverse of `split`."""
        return rows.flatten(0, 1).movedim(0, self.axis)


@frozen
class NoBatchAxis:
    """A tensor that does not depend on the images, such as positions."""


@frozen
class MixedBatchAxis:
    """A tensor that depends on the images but has no batch axis."""


@frozen
class NoTensor:
    """A number, a size, a tuple."""


Layout = BatchAxis | NoBatchAxis | MixedBatchAxis | NoTensor


def layouts(network: fx.GraphModule, inputs: Mapping[str, Any], split: set[str]) -> dict[str, Layout]:
    """Return the layout of every value of a float network, by node name.

    Args:
        inputs: The values of the placeholders on three images or more.
        split: The names of those with a batch axis, which is the first.
    Raises:
        CalibrationError: the network does not run on fewer images.
    """
    values = [_values(network, inputs, split, count) for count in (_FEW, _FEWER)]
    return {name: _layout(value, values[1][name]) for name, value in values[0].items()}


def _values(network: fx.GraphModule, inputs: Mapping[str, Any], split: set[str], count: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    interpreter = ObservingInterpreter(network, values.__setitem__)
    interpreter.extra_traceback = False
    arguments = [v[:count] if name in split else v for name, v in inputs.items()]
    try:
        with torch.no_grad():
            interpreter.run(*arguments, enable_io_processing=False)
    except Exception as e:
        raise CalibrationError(
            where=f"reconstruct, op {path_of(network, interpreter.current) if interpreter.current else 'inputs'!r}",
            found=f"on {count} images {first_line(e)}",
            wanted="a model that accepts any batch size",
            do="Capture it with qfunc.quantize(target)(model), or export it with a dynamic first axis.",
        ) from e
    return values


def _layout(few: Any, fewer: Any) -> Layout:
    if not isinstance(few, Tensor) or few.ndim != fewer.ndim:
        return MixedBatchAxis() if isinstance(few, Tensor) else NoTensor()
    axes = [i for i in range(few.ndim) if few.shape[i] != fewer.shape[i]]
    if not axes:
        return NoBatchAxis() if torch.equal(few, fewer) else MixedBatchAxis()
    axis, each = axes[0], few.shape[axes[0]] // _FEW
    if len(axes) > 1 or (few.shape[axis], fewer.shape[axis]) != (each * _FEW, each * _FEWER):
        return MixedBatchAxis()
    part = few.narrow(axis, 0, each * _FEWER)
    found = BatchAxis(axis, each, is_channels_last(few.movedim(axis, 0)))
    if not few.is_floating_point():
        return found if torch.equal(part, fewer) else MixedBatchAxis()
    # For another batch size the order of sums may differ, which changes roundings; other images differ by much more.
    size = float(fewer.abs().nan_to_num(posinf=0.0, neginf=0.0).max()) if fewer.numel() else 0.0
    close = torch.allclose(part, fewer, rtol=1e-3, atol=1e-3 * size, equal_nan=True)
    return found if close else MixedBatchAxis()
