"""A write into a part of a tensor as a value: what stands before the part, what is written, what stands behind it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qfunc.ops.creation import full_like

SliceIndex = tuple[int, slice]


def slice_indices(index: Any) -> list[SliceIndex] | None:
    """The axes of which an index takes a part, and the parts; None if it is not one of ints and slices without steps.

    >>> slice_indices((Ellipsis, slice(0, 2))), slice_indices((slice(None), -1)), slice_indices(slice(None, None, 2))
    ([(-1, slice(0, 2, None))], [(1, slice(-1, None, None))], None)
    """
    given = index if isinstance(index, tuple) else (index,)
    found: list[SliceIndex] = []
    behind = next((i for i, v in enumerate(given) if v is Ellipsis), len(given))
    for i, item in enumerate(given):
        if item is Ellipsis and i == behind:
            continue
        part = slice(item, item + 1 if item != -1 else None) if type(item) is int else item
        if not isinstance(part, slice) or part.step not in (None, 1):
            return None
        if any(type(end) is not int for end in (part.start or 0, part.stop or 0)) or (part.start or 0) < 0 < (part.stop or 0):
            return None
        if (part.start or 0, part.stop) != (0, None):
            found.append((i if i < behind else i - len(given), part))
    return found


def write_slice(emit: Callable[..., Any], x: Any, index: Any, value: Any) -> Any:
    """x after x[index] = value, for an index of which `slice_indices` are known; value broadcasts.

    Args:
        emit: (function, *arguments) -> the value of a call.
    """
    where = slice_indices(index) or []
    part = emit(operator.getitem, x, index)
    new = filled_slice(emit, part, value)
    if any(type(item) is int for item in (index if isinstance(index, tuple) else (index,))):  # axes that the part lacks
        whole = x
        for place in where:
            whole = emit(operator.getitem, whole, _at(*place))
        new = emit(torch.Tensor.view_as, new, whole)
    return _around(emit, x, where, new)


def filled_slice(emit: Callable[..., Any], x: Any, value: Any) -> Any:
    """A tensor of x's shape that holds value, a number or a tensor that broadcasts."""
    return emit(full_like, x, value, None) if isinstance(value, int | float) else emit(Tensor.expand_as, value, x)


def _around(emit: Callable[..., Any], x: Any, where: list[SliceIndex], new: Any) -> Any:
    if not where:
        return new
    (axis, part), *inner = where
    start, stop = part.start or 0, part.stop
    if stop is not None and (start < 0) == (stop < 0) and start >= stop:
        return x  # nothing is written
    new = _around(emit, emit(operator.getitem, x, _at(axis, part)), inner, new) if inner else new
    pieces = [emit(operator.getitem, x, _at(axis, slice(None, start)))] if start else []
    pieces.append(new)
    if stop is not None:
        # From the end it counts behind the part's start only: x[4:-5] of six elements is empty.
        rest = emit(operator.getitem, x, _at(axis, slice(start, None))) if start > 0 > stop else x
        pieces.append(emit(operator.getitem, rest, _at(axis, slice(stop, None))))
    return emit(torch.cat, pieces, axis) if len(pieces) > 1 else new


def _at(axis: int, part: slice) -> tuple[Any, ...]:
    return (slice(None),) * axis + (part,) if axis >= 0 else (Ellipsis, part, *(slice(None),) * (-axis - 1))


__all__ = ["filled_slice", "slice_indices", "write_slice"]
