"""Operators of TFLite that move values, as nodes of XNNPACK."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qfunc.errors import DeployError
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.xnnpack.builder import XnnpackBuilder

_LEGACY, _CORNERS = 0x4, 0x8  # XNN_FLAG_TENSORFLOW_LEGACY_MODE and _ALIGN_CORNERS
_JOINED = 5  # how many tensors one node joins


def reshape(graph: XnnpackBuilder, x: NhwcTensor, shape: Sequence[int], out: NhwcTensor | str) -> NhwcTensor:
    """Return the same entries in another shape, as an existing tensor or a new one of that name."""
    made = graph.tensor(out, shape, x.qparams) if isinstance(out, str) else out
    graph.node("XNNStaticReshape", made, num_dims=len(shape), new_shape=list(shape), input_id=x)
    return made


def transpose(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """XNNStaticTranspose."""
    order = _numbers(given[1])
    graph.node("XNNStaticTranspose", out, num_dims=len(order), perm=order, input_id=given[0])


def slices(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """XNNStaticSlice; steps by `_stepped`.

    Raises:
        DeployError: steps backwards.
    """
    x, begin, _, stride = given[0], *(_numbers(g) for g in given[1:])
    if min(stride) < 1:
        do = "Slice forwards."
        raise DeployError(where=f"tensor {out.name!r}", found=f"a slice in steps of {stride}", wanted="steps above 0", do=do)
    offsets = [0 if fields["beginMask"] >> i & 1 else b for i, b in enumerate(begin)]
    todo = [axis for axis, step in enumerate(stride) if step > 1]
    sizes = [min(n * s, size - o) for n, s, size, o in zip(out.shape, stride, x.shape, offsets, strict=True)]
    if not todo or sizes != list(x.shape):
        made = graph.tensor(f"{out.name}.span", sizes, x.qparams) if todo else out
        graph.node("XNNStaticSlice", made, num_dims=len(offsets), offsets=offsets, sizes=sizes, input_id=x)
        x = made
    if todo:
        _stepped(graph, x, out, stride, todo)


def _stepped(graph: XnnpackBuilder, x: NhwcTensor, out: NhwcTensor, stride: list[int], todo: list[int]) -> None:
    # Whole steps along each of these axes, of which the first entries are kept.
    shape = [n * s for n, s in zip(out.shape, stride, strict=True)]
    if shape != list(x.shape):
        whole, after = graph.tensor(f"{out.name}.whole", shape, x.qparams), [n - m for n, m in zip(shape, x.shape, strict=True)]
        graph.node(
            "XNNStaticConstantPad", whole, pre_paddings=[0] * len(shape), post_paddings=after, padding_value=0.0, input_id=x
        )
        x = whole
    for axis in todo:
        flat = (math.prod(shape[:axis]), out.shape[axis], stride[axis], math.prod(shape[axis + 1 :]))
        steps = reshape(graph, x, flat, f"{out.name}.steps{axis}")
        first = graph.tensor(f"{out.name}.first{axis}", (*flat[:2], 1, flat[3]), x.qparams)
        graph.node("XNNStaticSlice", first, num_dims=4, offsets=[0] * 4, sizes=list(first.shape), input_id=steps)
        shape[axis] = out.shape[axis]
        x = reshape(graph, first, shape, out if axis == todo[-1] else f"{out.name}.every{axis}")


def concatenate(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """XNNConcatenate, in turns where one node does not take as many tensors."""
    join(graph, given, out, int(fields["axis"]))


def join(graph: XnnpackBuilder, given: Sequence[NhwcTensor], out: NhwcTensor, axis: int) -> None:
    """Concatenate tensors of the same qparams."""
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


def pad(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
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


def tile(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
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


def resize(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """XNNStaticResizeBilinear2D."""
    flags = _CORNERS if fields["alignCorners"] else 0 if fields["halfPixelCenters"] else _LEGACY
    height, width = out.shape[1:3]
    graph.node("XNNStaticResizeBilinear2D", out, new_height=height, new_width=width, input_id=given[0], flags=flags)


def nearest(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Repeat each row and column by the factor.

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


def _numbers(held: NhwcTensor) -> list[int]:
    assert held.value is not None
    return [int(v) for v in np.ravel(held.value)]


__all__ = ["concatenate", "join", "nearest", "pad", "reshape", "resize", "slices", "tile", "transpose"]
