"""Operators of TFLite that move values, as nodes of XNNPACK."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qfunc.errors import DeployError
from qfunc.lowering.tflite_model import Held
from qfunc.lowering.xnn_graph import XnnGraph

_LEGACY, _CORNERS = 0x4, 0x8  # XNN_FLAG_TENSORFLOW_LEGACY_MODE and _ALIGN_CORNERS
_JOINED = 5  # how many tensors one node joins


def reshape(graph: XnnGraph, x: Held, shape: Sequence[int], out: Held | str) -> Held:
    """The same entries in another shape, as an existing tensor or a new one of that name."""
    made = graph.tensor(out, shape, x.qparams) if isinstance(out, str) else out
    graph.node("XNNStaticReshape", made, num_dims=len(shape), new_shape=list(shape), input_id=x)
    return made


def transpose(graph: XnnGraph, given: list[Held], out: Held, fields: dict[str, Any]) -> None:
    """XNNStaticTranspose."""
    order = _numbers(given[1])
    graph.node("XNNStaticTranspose", out, num_dims=len(order), perm=order, input_id=given[0])


def slices(graph: XnnGraph, given: list[Held], out: Held, fields: dict[str, Any]) -> None:
    """XNNStaticSlice.

    Raises:
        DeployError: a step other than 1.
    """
    x, begin, _, stride = given[0], *(_numbers(g) for g in given[1:])
    if set(stride) != {1}:
        do = "Reshape so that what is left out is an axis, and take one entry of it."
        raise DeployError(where=f"tensor {out.name!r}", found=f"a slice in steps of {stride}", wanted="steps of 1", do=do)
    offsets = [0 if fields["beginMask"] >> i & 1 else b for i, b in enumerate(begin)]
    graph.node("XNNStaticSlice", out, num_dims=len(offsets), offsets=offsets, sizes=list(out.shape), input_id=x)


def concatenate(graph: XnnGraph, given: list[Held], out: Held, fields: dict[str, Any]) -> None:
    """XNNConcatenate, in turns where one node does not take as many tensors."""
    join(graph, given, out, int(fields["axis"]))


def join(graph: XnnGraph, given: Sequence[Held], out: Held, axis: int) -> None:
    """Tensors of the same qparams behind one another."""
    parts = list(given)
    while len(parts) > _JOINED:
        first = parts[:_JOINED]
        shape = [sum(t.shape[i] for t in first) if i == axis else n for i, n in enumerate(first[0].shape)]
        made = graph.tensor(f"{out.name}.joined", shape, out.qparams)
        join(graph, first, made, axis)
        parts = [made, *parts[_JOINED:]]
    if len(parts) == 1:
        return graph.node("XNNCopy", out, input_id=parts[0])
    inputs: dict[str, Any] = {f"input{i + 1}_id": t for i, t in enumerate(parts)}
    graph.node(f"XNNConcatenate{len(parts)}", out, axis=axis, **inputs)


def pad(graph: XnnGraph, given: list[Held], out: Held, fields: dict[str, Any]) -> None:
    """XNNStaticConstantPad; its value is a real one, also of codes."""
    x, pairs, value = given[0], np.reshape(_numbers(given[1]), (-1, 2)), 0.0
    if len(given) > 2:
        assert given[2].value is not None
        value = float(given[2].value.ravel()[0])
        if x.qparams is not None:
            value = (value - x.qparams.zero_point[0]) * float(np.float32(x.qparams.scale[0]))
    graph.node(
        "XNNStaticConstantPad", out, pre_paddings=pairs[:, 0], post_paddings=pairs[:, 1], padding_value=value, input_id=x
    )


def tile(graph: XnnGraph, given: list[Held], out: Held, fields: dict[str, Any]) -> None:
    """Tensors behind one another, axis by axis."""
    x, times = given[0], _numbers(given[1])
    todo = [axis for axis, n in enumerate(times) if n != 1]
    for place, axis in enumerate(todo):
        shape = [n * times[axis] if i == axis else n for i, n in enumerate(x.shape)]
        made = out if place == len(todo) - 1 else graph.tensor(f"{out.name}.axis{axis}", shape, out.qparams)
        join(graph, [x] * times[axis], made, axis)
        x = made
    if not todo:
        graph.node("XNNCopy", out, input_id=x)


def resize(graph: XnnGraph, given: list[Held], out: Held, fields: dict[str, Any]) -> None:
    """XNNStaticResizeBilinear2D."""
    flags = _CORNERS if fields["alignCorners"] else 0 if fields["halfPixelCenters"] else _LEGACY
    height, width = out.shape[1:3]
    graph.node("XNNStaticResizeBilinear2D", out, new_height=height, new_width=width, input_id=given[0], flags=flags)


def nearest(graph: XnnGraph, given: list[Held], out: Held, fields: dict[str, Any]) -> None:
    """Each row and column as often as the factor says.

    Raises:
        DeployError: a factor that is no whole number.
    """
    x = given[0]
    factors = [b / a for a, b in zip(x.shape[1:3], out.shape[1:3], strict=True)]
    if fields["alignCorners"] or any(f != int(f) for f in factors):
        do = "Resize by whole factors, or bilinearly."
        found = f"nearest neighbours of {x.shape[1:3]} to {out.shape[1:3]}"
        raise DeployError(where=f"tensor {out.name!r}", found=found, wanted="whole factors", do=do)
    shape = list(x.shape)
    for axis, factor in ((1, int(factors[0])), (2, int(factors[1]))):
        flat = (math.prod(shape[: axis + 1]), 1, math.prod(shape[axis + 1 :]))
        rows = reshape(graph, x, flat, f"{out.name}.rows{axis}")
        shape[axis] *= factor
        made = graph.tensor(f"{out.name}.repeated{axis}", (flat[0], factor, flat[2]), x.qparams)
        join(graph, [rows] * factor, made, 1)
        x = reshape(graph, made, shape, out if axis == 2 else f"{out.name}.repeated{axis}")


def _numbers(held: Held) -> list[int]:
    assert held.value is not None
    return [int(v) for v in np.ravel(held.value)]


__all__ = ["concatenate", "join", "nearest", "pad", "reshape", "resize", "slices", "tile", "transpose"]
