"""Write the operators of TFLite that move codes in TOSA."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qfunc.errors import DeployError
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.numerics.kernels.resize import steps
from qfunc.targets.tosa.builder import TosaBuilder
from qfunc.targets.tosa.images import write_concat, write_reshape, write_slice
from qfunc.targets.tosa.rescale import multiplier, qparams_of, rescale
from qfunc.targets.tosa.schema import BILINEAR, NEAREST

Fields = dict[str, Any]


def reshape(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """Write RESHAPE."""
    write_reshape(graph, inputs[0], out.shape, out)


def transpose(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """Write TRANSPOSE."""
    graph.node("TRANSPOSE", [inputs[0]], out, perms=_numbers(inputs[1]))


def concatenate(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """Write CONCAT."""
    write_concat(graph, inputs, out, int(fields["axis"]))


def slices(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """Write SLICE; for a step, reshape the axis to [count, step] and slice the first entry of each row.

    An axis of a negative step is reversed first.
    """
    x, begin, _, stride = inputs[0], *(_numbers(tensor) for tensor in inputs[1:])
    begin = [0 if fields["beginMask"] >> i & 1 else b for i, b in enumerate(begin)]
    for axis in (i for i, step in enumerate(stride) if step < 0):
        turned = graph.tensor(f"{out.name}.turned{axis}", x.shape, x.qparams)
        graph.node("REVERSE", [x], turned, axis=axis)
        x, begin[axis], stride[axis] = turned, x.shape[axis] - 1 - begin[axis], -stride[axis]
    stepped = [i for i, step in enumerate(stride) if step != 1]
    for i, axis in enumerate(stepped):
        x = _write_stepped(graph, x, axis, begin[axis], stride[axis], out.shape[axis], f"{out.name}.axis{axis}")
        begin[axis] = 0
        if i == len(stepped) - 1 and x.shape == out.shape:
            return graph.node("IDENTITY", [x], out)
    write_slice(graph, x, out, begin)


def _write_stepped(graph: TosaBuilder, x: NhwcTensor, axis: int, first: int, stride: int, count: int, name: str) -> NhwcTensor:
    # Entries first, first + stride, ... of an axis.
    def with_length(length: int) -> tuple[int, ...]:
        return tuple(length if i == axis else n for i, n in enumerate(x.shape))

    length = min(count * stride, x.shape[axis] - first)
    span = graph.tensor(f"{name}.from", with_length(length), x.qparams)
    write_slice(graph, x, span, [first if i == axis else 0 for i in range(len(x.shape))])
    if length < count * stride:
        padded = graph.tensor(f"{name}.whole", with_length(count * stride), x.qparams)
        pairs = [[0, count * stride - length] if i == axis else [0, 0] for i in range(len(x.shape))]
        write_pad(graph, span, padded, pairs, qparams_of(x)[1])
        span = padded
    before, after = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    rows = write_reshape(graph, span, (before, count, stride, after), f"{name}.rows")
    kept = graph.tensor(f"{name}.first", (before, count, 1, after), x.qparams)
    write_slice(graph, rows, kept, (0, 0, 0, 0))
    return write_reshape(graph, kept, with_length(count), f"{name}.every")


def write_pad(graph: TosaBuilder, x: NhwcTensor, out: NhwcTensor, pairs: Any, code: int) -> None:
    """Write PAD with a code as the value."""
    graph.node("PAD", [x, graph.shape([int(v) for v in np.ravel(pairs)]), graph.constant(code, np.int8)], out)


def pad(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """Write PAD with the zero point, or with the operator's value."""
    x, code = inputs[0], qparams_of(inputs[0])[1]
    if len(inputs) > 2:
        (value,) = np.ravel(np.asarray(inputs[2].value))
        code = int(value)
        if inputs[2].qparams is None:
            code = int(np.clip(np.rint(np.float32(value) / np.float32(qparams_of(x)[0])) + qparams_of(x)[1], -128, 127))
    write_pad(graph, x, out, _numbers(inputs[1]), code)


def mirror(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """Write a reflection padding: SLICE and REVERSE make the borders, CONCAT adds them to the tensor."""
    x, pairs = inputs[0], np.reshape(_numbers(inputs[1]), (-1, 2))
    padded = [j for j, p in enumerate(pairs) if any(p)]
    for i, axis in enumerate(padded):
        parts = [x]
        for side, count in enumerate(int(v) for v in pairs[axis]):
            if not count:
                continue
            start = 1 if side == 0 else x.shape[axis] - 1 - count
            shape = [count if j == axis else n for j, n in enumerate(x.shape)]
            prefix = f"{out.name}.axis{axis}.{side}"
            border = graph.tensor(f"{prefix}.part", shape, x.qparams)
            reversed_border = graph.tensor(f"{prefix}.turned", shape, x.qparams)
            write_slice(graph, x, border, [start if j == axis else 0 for j in range(len(shape))])
            graph.node("REVERSE", [border], reversed_border, axis=axis)
            parts.insert(0 if side == 0 else len(parts), reversed_border)
        shape = [sum(p.shape[j] for p in parts) if j == axis else n for j, n in enumerate(x.shape)]
        result = out if i == len(padded) - 1 else graph.tensor(f"{out.name}.axis{axis}", shape, x.qparams)
        write_concat(graph, parts, result, axis)
        x = result
    if not padded:
        graph.node("IDENTITY", [x], out)


def tile(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """Write TILE."""
    graph.node("TILE", [inputs[0], graph.shape(_numbers(inputs[1]))], out)


def nearest(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """Write RESIZE to the nearest entry: entry i // f for a whole factor f.

    Raises:
        DeployError: a factor that is not a whole number.
    """
    x = inputs[0]
    sizes = list(zip(x.shape[1:3], out.shape[1:3], strict=True))
    if fields["alignCorners"] or any(b % a for a, b in sizes):
        do = "Resize by whole factors, or use mode='bilinear'."
        found = f"mode='nearest' from {x.shape[1:3]} to {out.shape[1:3]}"
        raise DeployError(where=f"tensor {out.name!r}", found=found, wanted="whole factors", do=do)
    ratios = [(2 * (b // a), 2, -(b // a)) for a, b in sizes]
    _resize(graph, x, out, ratios, NEAREST)


def bilinear(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """Write RESIZE with integer weights, then RESCALE to divide by their sum.

    Raises:
        DeployError: sizes whose ratio has more than 11 bits.
    """
    x, corners = inputs[0], bool(fields["alignCorners"])
    ratios = [steps(a, b, corners) for a, b in zip(x.shape[1:3], out.shape[1:3], strict=True)]
    acc = graph.int32_tensor(f"{out.name}.sum", out.shape)
    _resize(graph, x, acc, ratios, BILINEAR)
    divisor = ratios[0][0] * ratios[1][0]
    rescale(graph, acc, out, multiplier(np.asarray(1.0 / divisor)))  # the zero point is a constant that the weights preserve


def _resize(graph: TosaBuilder, x: NhwcTensor, out: NhwcTensor, ratios: list[tuple[int, int, int]], mode: int) -> None:
    sizes = list(zip(x.shape[1:3], out.shape[1:3], strict=True))
    if any(n > 2**11 for n, _, _ in ratios):
        do = "Choose sizes whose ratio has a numerator of at most 2048, such as a whole factor."
        found = f"a resize from {x.shape[1:3]} to {out.shape[1:3]}"
        raise DeployError(where=f"tensor {out.name!r}", found=found, wanted="ratios with numerators of at most 2^11", do=do)
    borders = [(b - 1) * d - (a - 1) * n + o for (a, b), (n, d, o) in zip(sizes, ratios, strict=True)]
    scales = [v for n, d, _ in ratios for v in (n, d)]
    offsets = [o for _, _, o in ratios]
    graph.node("RESIZE", [x, graph.shape(scales), graph.shape(offsets), graph.shape(borders)], out, mode=mode)


def _numbers(tensor: NhwcTensor) -> list[int]:
    return [int(v) for v in np.ravel(np.asarray(tensor.value))]
