"""Express a write into a slice of a tensor as a pure op: concatenate the part before, the new values and the part after."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from qfunc.frontend.aliasing import SEVERAL, SPLITS
from qfunc.ops.canonicalize import canonical
from qfunc.ops.creation import full_like
from qfunc.ops.definition import Trait
from qfunc.ops.indexing import index_put
from qfunc.ops.node import has
from qfunc.ops.sizes import is_number, short_name

SliceIndex = tuple[int, slice]


def slice_indices(index: Any) -> list[SliceIndex] | None:
    """Return the axes that an index slices, with their slices; None unless it has only ints and slices without steps.

    >>> slice_indices((Ellipsis, slice(0, 2))), slice_indices((slice(None), -1)), slice_indices(slice(None, None, 2))
    ([(-1, slice(0, 2, None))], [(1, slice(-1, None, None))], None)
    """
    given = index if isinstance(index, tuple) else (index,)
    slices: list[SliceIndex] = []
    ellipsis = next((i for i, v in enumerate(given) if v is Ellipsis), len(given))
    for i, item in enumerate(given):
        if item is Ellipsis and i == ellipsis:
            continue
        part = slice(item, item + 1 if item != -1 else None) if type(item) is int else item
        if not isinstance(part, slice) or part.step not in (None, 1):
            return None
        if any(type(end) is not int for end in (part.start or 0, part.stop or 0)) or (part.start or 0) < 0 < (part.stop or 0):
            return None
        if (part.start or 0, part.stop) != (0, None):
            slices.append((i if i < ellipsis else i - len(given), part))
    return slices


def write_slice(emit: Callable[..., Any], x: Any, index: Any, value: Any) -> Any:
    """Return x after x[index] = value; value broadcasts.

    Args:
        emit: (function, *arguments) -> the value of a call.
        index: An index for which `slice_indices` is not None.
    """
    slices = slice_indices(index) or []
    part = emit(operator.getitem, x, index)
    new = filled_slice(emit, part, value)
    if any(type(item) is int for item in (index if isinstance(index, tuple) else (index,))):  # the slice lacks these axes
        whole = x
        for entry in slices:
            whole = emit(operator.getitem, whole, _axis_index(*entry))
        new = emit(torch.Tensor.view_as, new, whole)
    return _concatenate(emit, x, slices, new)


def write_positions(emit: Callable[..., Any], x: Any, index: Any, value: Any) -> Any:
    """Return x after x[:, ..., places] = value with a tensor of places, or None for other indices."""
    *before, places = index if isinstance(index, tuple) else (index,)
    if not isinstance(places, fx.Node) or is_number(places) or _selects(places):
        return None  # the sizes of what a mask selects depend on values
    if any(entry != slice(None) for entry in before):
        return None
    return emit(index_put, x, len(before), places, value)


def _selects(places: fx.Node) -> bool:
    # True for booleans.
    return has(places, Trait.INTEGER_RESULT) and not has(places, Trait.NEVER_BOOLEAN)


def filled_slice(emit: Callable[..., Any], x: Any, value: Any) -> Any:
    """Return a tensor of x's shape filled with value, a number or a tensor that broadcasts."""
    return emit(full_like, x, value, None) if isinstance(value, int | float) else emit(Tensor.expand_as, value, x)


def _concatenate(emit: Callable[..., Any], x: Any, slices: list[SliceIndex], new: Any) -> Any:
    if not slices:
        return new
    (axis, part), *inner = slices
    start, stop = part.start or 0, part.stop
    if stop is not None and (start < 0) == (stop < 0) and start >= stop:
        return x  # nothing is written
    new = _concatenate(emit, emit(operator.getitem, x, _axis_index(axis, part)), inner, new) if inner else new
    pieces = [emit(operator.getitem, x, _axis_index(axis, slice(None, start)))] if start else []
    pieces.append(new)
    if stop is not None:
        # A negative stop counts only the elements after start: x[4:-5] of six elements is empty.
        rest = emit(operator.getitem, x, _axis_index(axis, slice(start, None))) if start > 0 > stop else x
        pieces.append(emit(operator.getitem, rest, _axis_index(axis, slice(stop, None))))
    return emit(torch.cat, pieces, axis) if len(pieces) > 1 else new


def _axis_index(axis: int, part: slice) -> tuple[Any, ...]:
    return (slice(None),) * axis + (part,) if axis >= 0 else (Ellipsis, part, *(slice(None),) * (-axis - 1))


def view_index(node: fx.Node, source: fx.Node, is_part: bool) -> Any:
    """Return the index that selects a view of a tensor, or None if it is unknown; x[0] may select one of several tensors."""
    call = canonical(node)
    if call is None or call[0] is not operator.getitem or call[1][0] is not source or slice_indices(call[1][1]) is None:
        return None
    several = not is_part and (
        source.op in ("placeholder", "call_module")
        or short_name(source.op, source.target) in (*SEVERAL, *SPLITS, "getitem", None)
    )
    return None if several and type(call[1][1]) is int else call[1][1]
