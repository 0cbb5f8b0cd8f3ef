"""Write the operators of TFLite that move values as nodes of XNNPACK."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qfunc.errors import DeployError
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.targets.executorch.builder import XnnpackBuilder

_LEGACY, _CORNERS = 0x4, 0x8  # XNN_FLAG_TENSORFLOW_LEGACY_MODE and _ALIGN_CORNERS
_MAX_INPUTS = 5  # the largest number of inputs of XNNConcatenate


def reshape(graph: XnnpackBuilder, x: NhwcTensor, shape: Sequence[int], out: NhwcTensor | str) -> NhwcTensor:
    """Write XNNStaticReshape into `out`, a tensor or the name of a new one, and return it."""
    result = graph.tensor(out, shape, x.qparams) if isinstance(out, str) else out
    graph.node("XNNStaticReshape", result, num_dims=len(shape), new_shape=list(shape), input_id=x)
    return result


def transpose(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write XNNStaticTranspose."""
    order = _numbers(inputs[1])
    graph.node("XNNStaticTranspose", out, num_dims=len(order), perm=order, input_id=inputs[0])


def slices(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write XNNStaticSlice, and the nodes of a slice with steps. Slices backwards are joined entries."""
    x, begin, _, stride = inputs[0], *(_numbers(tensor) for tensor in inputs[1:])
    offsets = [0 if fields["beginMask"] >> i & 1 else b for i, b in enumerate(begin)]
    backwards = [axis for axis, step in enumerate(stride) if step < 0]
    for axis in backwards:
        places = [offsets[axis] + i * stride[axis] for i in range(out.shape[axis])]
        entries = [_entry(graph, x, axis, place, f"{out.name}.axis{axis}") for place in places]
        offsets[axis], stride[axis] = 0, 1
        shape = [len(places) if i == axis else n for i, n in enumerate(x.shape)]
        last = axis == backwards[-1] and shape == list(out.shape)
        x = join(graph, entries, out if last else graph.tensor(f"{out.name}.axis{axis}", shape, x.qparams), axis)
        if last:
            return
    stepped = [axis for axis, step in enumerate(stride) if step > 1]
    sizes = [min(n * s, size - o) for n, s, size, o in zip(out.shape, stride, x.shape, offsets, strict=True)]
    if not stepped or sizes != list(x.shape):
        result = graph.tensor(f"{out.name}.span", sizes, x.qparams) if stepped else out
        graph.node("XNNStaticSlice", result, num_dims=len(offsets), offsets=offsets, sizes=sizes, input_id=x)
        x = result
    if stepped:
        _write_steps(graph, x, out, stride, stepped)


def _write_steps(graph: XnnpackBuilder, x: NhwcTensor, out: NhwcTensor, stride: list[int], axes: list[int]) -> None:
    # Pad each axis to a multiple of its step, reshape it to [count, step], and slice the first entry of each row.
    shape = [n * s for n, s in zip(out.shape, stride, strict=True)]
    if shape != list(x.shape):
        padded, post = graph.tensor(f"{out.name}.whole", shape, x.qparams), [n - m for n, m in zip(shape, x.shape, strict=True)]
        graph.node(
            "XNNStaticConstantPad", padded, pre_paddings=[0] * len(shape), post_paddings=post, padding_value=0.0, input_id=x
        )
        x = padded
    for axis in axes:
        flat = (math.prod(shape[:axis]), out.shape[axis], stride[axis], math.prod(shape[axis + 1 :]))
        steps = reshape(graph, x, flat, f"{out.name}.steps{axis}")
        first = graph.tensor(f"{out.name}.first{axis}", (*flat[:2], 1, flat[3]), x.qparams)
        graph.node("XNNStaticSlice", first, num_dims=4, offsets=[0] * 4, sizes=list(first.shape), input_id=steps)
        shape[axis] = out.shape[axis]
        x = reshape(graph, first, shape, out if axis == axes[-1] else f"{out.name}.every{axis}")


def concatenate(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write XNNConcatenate, several times if there are more tensors than one node accepts."""
    join(graph, inputs, out, int(fields["axis"]))


def join(graph: XnnpackBuilder, inputs: Sequence[NhwcTensor], out: NhwcTensor, axis: int) -> NhwcTensor:
    """Write the concatenation of tensors with the same qparams into `out`, and return it."""
    parts = list(inputs)
    while len(parts) > _MAX_INPUTS:
        first = parts[:_MAX_INPUTS]
        shape = [sum(t.shape[i] for t in first) if i == axis else n for i, n in enumerate(first[0].shape)]
        result = graph.tensor(f"{out.name}.joined", shape, out.qparams)
        join(graph, first, result, axis)
        parts = [result, *parts[_MAX_INPUTS:]]
    if len(parts) == 1:
        graph.node("XNNCopy", out, input_id=parts[0])
        return out
    operands: dict[str, Any] = {f"input{i + 1}_id": t for i, t in enumerate(parts)}
    graph.node(f"XNNConcatenate{len(parts)}", out, axis=axis, **operands)
    return out


def _entry(graph: XnnpackBuilder, x: NhwcTensor, axis: int, place: int, name: str) -> NhwcTensor:
    # One entry of an axis, which stays with the length 1.
    shape = [1 if i == axis else n for i, n in enumerate(x.shape)]
    made = graph.tensor(f"{name}.entry{place}", shape, x.qparams)
    offsets = [place if i == axis else 0 for i in range(len(shape))]
    graph.node("XNNStaticSlice", made, num_dims=len(shape), offsets=offsets, sizes=shape, input_id=x)
    return made


def pad(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write XNNStaticConstantPad, whose value is a real number even if the tensor is codes."""
    x, pairs, value = inputs[0], np.reshape(_numbers(inputs[1]), (-1, 2)), 0.0
    if len(inputs) > 2:
        assert inputs[2].value is not None
        value = float(inputs[2].value.ravel()[0])
        if x.qparams is not None:
            value = (value - x.qparams.zero_point[0]) * float(np.float32(x.qparams.scale[0]))
    graph.node(
        "XNNStaticConstantPad", out, pre_paddings=pairs[:, 0], post_paddings=pairs[:, 1], padding_value=value, input_id=x
    )


def mirror(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write a padding by reflection: for each padded axis, slices of one entry and the tensor, joined."""
    x, pairs = inputs[0], np.reshape(_numbers(inputs[1]), (-1, 2)).tolist()
    padded = [axis for axis, pair in enumerate(pairs) if any(pair)]
    for axis in padded:
        (before, after), length = pairs[axis], x.shape[axis]
        places = range(before, 0, -1), range(length - 2, length - 2 - after, -1)
        parts = [[_entry(graph, x, axis, place, f"{out.name}.axis{axis}") for place in side] for side in places]
        shape = [length + before + after if i == axis else n for i, n in enumerate(x.shape)]
        result = out if axis == padded[-1] else graph.tensor(f"{out.name}.axis{axis}", shape, x.qparams)
        join(graph, [*parts[0], x, *parts[1]], result, axis)
        x = result
    if not padded:
        graph.node("XNNCopy", out, input_id=x)


def tile(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write repetitions of a tensor as concatenations, axis by axis."""
    x, repeats = inputs[0], _numbers(inputs[1])
    repeated = [axis for axis, n in enumerate(repeats) if n != 1]
    for i, axis in enumerate(repeated):
        shape = [n * repeats[axis] if j == axis else n for j, n in enumerate(x.shape)]
        result = out if i == len(repeated) - 1 else graph.tensor(f"{out.name}.axis{axis}", shape, out.qparams)
        join(graph, [x] * repeats[axis], result, axis)
        x = result
    if not repeated:
        graph.node("XNNCopy", out, input_id=x)


def resize(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write XNNStaticResizeBilinear2D."""
    flags = _CORNERS if fields["alignCorners"] else 0 if fields["halfPixelCenters"] else _LEGACY
    height, width = out.shape[1:3]
    graph.node("XNNStaticResizeBilinear2D", out, new_height=height, new_width=width, input_id=inputs[0], flags=flags)


def nearest(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write a resize to the nearest entry: repeat each row and column by the factor.

    Raises:
        DeployError: a factor that is not a whole number.
    """
    x = inputs[0]
    factors = [b / a for a, b in zip(x.shape[1:3], out.shape[1:3], strict=True)]
    if fields["alignCorners"] or any(f != int(f) for f in factors):
        do = "Resize by whole factors, or use mode='bilinear'."
        found = f"mode='nearest' from {x.shape[1:3]} to {out.shape[1:3]}"
        raise DeployError(where=f"tensor {out.name!r}", found=found, wanted="whole factors", do=do)
    shape = list(x.shape)
    for axis, factor in ((1, int(factors[0])), (2, int(factors[1]))):
        flat = (math.prod(shape[: axis + 1]), 1, math.prod(shape[axis + 1 :]))
        rows = reshape(graph, x, flat, f"{out.name}.rows{axis}")
        shape[axis] *= factor
        result = graph.tensor(f"{out.name}.repeated{axis}", (flat[0], factor, flat[2]), x.qparams)
        join(graph, [rows] * factor, result, 1)
        x = reshape(graph, result, shape, out if axis == 2 else f"{out.name}.repeated{axis}")


def _numbers(tensor: NhwcTensor) -> list[int]:
    assert tensor.value is not None
    return [int(v) for v in np.ravel(tensor.value)]
