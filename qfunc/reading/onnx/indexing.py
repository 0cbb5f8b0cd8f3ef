"""Read slices, gathers, scatters, selections and triangles."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from qfunc.reading.node import NodeReader, Reader
from qfunc.reading.values import Constant, Number, Value

_END = 2**31 - 1


def _slice(r: NodeReader) -> Any:
    starts, ends = r.listed("starts", 1), r.listed("ends", 2)
    if starts is None or ends is None:
        raise r.refuse("no starts or ends", "both", "Check the file with onnx.checker.")
    axes, steps = r.axes(3), r.listed("steps", 4)
    parts = dict[int, Any]()
    found: Any = r.x()
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis, step = i if axes is None else axes[i], 1 if steps is None else steps[i]
        axis = axis if axis >= 0 else axis + r.known_rank()
        if isinstance(step, int) and step > 0:
            if part := _part(start, end, step):
                parts[axis] = slice(*part)
        else:
            found = _backwards(r, found, axis, start, end, step)
    if not parts:
        return found
    index = tuple(parts.get(axis, slice(None)) for axis in range(max(parts) + 1))
    return r.call(operator.getitem, found, index)


def _part(start: Number, end: Number, step: int) -> tuple[Any, Any, Any] | None:
    stop = None if isinstance(end, int) and end >= _END else end
    first = None if isinstance(start, int) and (start == 0 or start <= -_END) else start
    return None if (first, stop, step) == (None, None, 1) else (first, stop, step if step != 1 else None)


def _backwards(r: NodeReader, x: Any, axis: int, start: Number, end: Number, step: Number) -> Any:
    whole = step == -1 and isinstance(start, int) and isinstance(end, int)
    if whole and (start == -1 or start >= _END) and end <= -_END:  # type: ignore[operator]
        return r.call(torch.flip, x, (axis,))
    size = r.length(axis)
    if size is None or not all(isinstance(v, int) for v in (start, end, step)):
        raise r.refuse("a slice with a negative step, of sizes that vary", "known sizes", r.network.how_to_fix_sizes)
    first = size + start if start < 0 else start  # type: ignore[operator]
    last = size + end if end < 0 else end  # type: ignore[operator]
    places = list(range(max(min(first, size - 1), 0), max(min(last, size - 1), -1), step))  # type: ignore[arg-type]
    return _at(r, x, axis, torch.tensor(places, dtype=torch.int64))


def _at(r: NodeReader, x: Any, axis: int, places: Any) -> Any:
    constant = Constant(places, f"{r.path}.places") if isinstance(places, torch.Tensor) else places
    return r.call(torch.index_select, x, axis, constant)


def _gather(r: NodeReader) -> Any:
    axis, places = int(r.attribute("axis", 0)), r.tensor(1)
    x = r.weight(0) if places is None else r.x()
    if isinstance(x, Constant) and places is None and axis == 0 and x.tensor.ndim == 2 and x.tensor.is_floating_point():
        return r.call(F.embedding, r.x(1), x)
    axis = axis if axis >= 0 else axis + r.known_rank()
    if places is not None and places.ndim == 0 and isinstance(x, fx.Node):
        return r.call(operator.getitem, x, (*(slice(None),) * axis, int(places)))
    if places is not None and bool((places < 0).any()) and (size := r.length(axis)) is not None:
        places = torch.where(places < 0, places + size, places)
    index = Constant(places.long(), f"{r.path}.places") if places is not None else r.x(1)
    if isinstance(x, Constant) and isinstance(index, Constant):
        found: Value = r.call(lambda t, i: t[(*(slice(None),) * axis, i)], x, index)
        return found
    return r.call(operator.getitem, x, (*(slice(None),) * axis, index))


def _gather_elements(r: NodeReader) -> Any:
    axis, places = int(r.attribute("axis", 0)), r.tensor(1)
    if places is not None and bool((places < 0).any()):
        size = r.length(axis)
        if size is None:
            raise r.refuse("places from the end, of sizes that vary", "known sizes", r.network.how_to_fix_sizes)
        places = torch.where(places < 0, places + size, places)
    index = Constant(places.long(), f"{r.path}.places") if places is not None else r.x(1)
    return r.call(torch.gather, r.x(), axis, index)


def _gather_nd(r: NodeReader) -> Any:
    batch, places = int(r.attribute("batch_dims", 0)), r.x(1)
    depth = r.length(-1, 1)
    if batch or depth is None:
        raise r.refuse(f"batch_dims={batch}, places of {depth} axes", "places of whole tensors", "Leave the op out.")
    index = tuple(r.call(operator.getitem, places, (..., k)) for k in range(depth))
    if depth == 1 or not any(isinstance(v, fx.Node) for v in (r.value(0), *index)):
        return r.call(lambda t, *i: t[i], r.x(), *index) if not isinstance(r.value(0), fx.Node) else _indexed(r, index)
    return _indexed(r, index)


def _indexed(r: NodeReader, index: tuple[Any, ...]) -> Any:
    return r.call(operator.getitem, r.x(), index)


def _scatter_elements(r: NodeReader) -> Any:
    axis, how = int(r.attribute("axis", 0)), r.attribute("reduction", "none")
    if how != "none":
        raise r.refuse(f"reduction {how!r}", "values that replace others", "Leave the op out: read(..., outputs=(...)).")
    places = r.tensor(1)
    if places is not None and bool((places < 0).any()) and (size := r.length(axis)) is not None:
        places = torch.where(places < 0, places + size, places)
    index = Constant(places.long(), f"{r.path}.places") if places is not None else r.x(1)
    return r.call(torch.scatter, r.x(), axis, index, r.x(2))


def _scatter_nd(r: NodeReader) -> Any:
    places, how = r.tensor(1), r.attribute("reduction", "none")
    values = [r.value(i) for i in (0, 2)]
    if how != "none" or (r.length(-1, 1) != 1 and any(isinstance(v, fx.Node) for v in (*values, r.value(1)))):
        found = f"reduction {how!r}, places of {r.length(-1, 1)} axes"
        raise r.refuse(found, "values that replace rows", "Leave the op out: read(..., outputs=(...)).")
    if places is not None and not any(isinstance(v, fx.Node) for v in values):
        return r.call(lambda t, i, v: t.clone().index_put(tuple(i.unbind(-1)), v), r.x(), r.x(1), r.x(2))
    index = r.call(operator.getitem, r.x(1), (..., 0))
    return r.call(torch.index_put, r.x(), (index,), r.x(2))


def _where(r: NodeReader) -> Any:
    return r.call(torch.where, r.x(0), r.x(1), r.x(2))


def _one_hot(r: NodeReader) -> Any:
    depth, values = int(r.known(1, "a depth").reshape(-1)[0]), r.known(2, "values")
    axis, places = int(r.attribute("axis", -1)), r.x(0)
    integers = r.call(torch.Tensor.to, places, torch.int64) if r.dtype() != torch.int64 else places
    inside = r.call(torch.remainder, integers, depth)
    found = r.call(F.one_hot, inside, depth)
    rank = r.known_rank() + 1
    if axis % rank != rank - 1:
        found = r.call(torch.movedim, found, -1, axis % rank)
    off, on = values.tolist()
    if (off, on) == (0, 1) and not values.is_floating_point():
        return r.call(torch.Tensor.to, found, values.dtype) if values.dtype != torch.int64 else found
    real = r.call(torch.Tensor.to, found, values.dtype)
    return r.call(torch.add, r.call(torch.mul, real, on - off), off)


def _triangle(r: NodeReader) -> Any:
    k = int(r.known(1, "a diagonal").reshape(-1)[0]) if r.has(1) else 0
    return r.call(torch.triu if r.attribute("upper", 1) else torch.tril, r.x(), k)


def _compress(r: NodeReader) -> Any:
    chosen, axis = r.known(1, "conditions"), r.attribute("axis")
    places = torch.nonzero(chosen).reshape(-1)
    x = r.x() if axis is not None else r.call(torch.reshape, r.x(), (-1,))
    return _at(r, x, int(axis or 0), places)


def _non_zero(r: NodeReader) -> Any:
    return r.call(lambda t: torch.nonzero(t).T.contiguous(), Constant(r.known(0, "values"), r.path))


READERS: dict[str, Reader] = {
    "Slice": _slice, "Gather": _gather, "GatherElements": _gather_elements, "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements, "Scatter": _scatter_elements, "ScatterND": _scatter_nd, "Where": _where,
    "OneHot": _one_hot, "Trilu": _triangle, "Compress": _compress, "NonZero": _non_zero,
}  # fmt: skip
"""The readers of this family, by operator."""
