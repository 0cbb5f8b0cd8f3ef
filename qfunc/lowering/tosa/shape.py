"""Operators of TFLite that move codes, as TOSA's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qfunc.errors import DeployError
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.tosa.builder import TosaBuilder
from qfunc.lowering.tosa.images import cut, joined, reshaped
from qfunc.lowering.tosa.rescale import multiplier, qparams_of, rescale
from qfunc.lowering.tosa.schema import BILINEAR, NEAREST
from qfunc.numerics.kernels.resize import steps

Fields = dict[str, Any]


def reshape(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """RESHAPE."""
    reshaped(graph, given[0], out.shape, out)


def transpose(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """TRANSPOSE."""
    graph.node("TRANSPOSE", [given[0]], out, perms=_numbers(given[1]))


def concatenate(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """CONCAT."""
    joined(graph, given, out, int(fields["axis"]))


def slices(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """SLICE; steps by an axis of their own, of which the first entry is taken."""
    x, begin, _, stride = given[0], *(_numbers(g) for g in given[1:])
    begin = [0 if fields["beginMask"] >> i & 1 else b for i, b in enumerate(begin)]
    todo = [i for i, s in enumerate(stride) if s != 1]
    if any(s < 1 for s in stride):
        do = "Flip outside the model."
        raise DeployError(where=f"tensor {out.name!r}", found=f"a slice in steps of {stride}", wanted="positive steps", do=do)
    for place, axis in enumerate(todo):
        x = _every(graph, x, axis, begin[axis], stride[axis], out.shape[axis], f"{out.name}.axis{axis}")
        begin[axis] = 0
        if place == len(todo) - 1 and x.shape == out.shape:
            return graph.node("IDENTITY", [x], out)
    cut(graph, x, out, begin)


def _every(graph: TosaBuilder, x: NhwcTensor, axis: int, begin: int, step: int, count: int, name: str) -> NhwcTensor:
    # Entries begin, begin + step, ... of an axis.
    def sized(length: int) -> tuple[int, ...]:
        return tuple(length if i == axis else n for i, n in enumerate(x.shape))

    length = min(count * step, x.shape[axis] - begin)
    part = graph.tensor(f"{name}.from", sized(length), x.qparams)
    cut(graph, x, part, [begin if i == axis else 0 for i in range(len(x.shape))])
    if length < count * step:
        whole = graph.tensor(f"{name}.whole", sized(count * step), x.qparams)
        filled(
            graph,
            part,
            whole,
            [[0, count * step - length] if i == axis else [0, 0] for i in range(len(x.shape))],
            qparams_of(x)[1],
        )
        part = whole
    front, behind = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    rows = reshaped(graph, part, (front, count, step, behind), f"{name}.rows")
    first = graph.tensor(f"{name}.first", (front, count, 1, behind), x.qparams)
    cut(graph, rows, first, (0, 0, 0, 0))
    return reshaped(graph, first, sized(count), f"{name}.every")


def filled(graph: TosaBuilder, x: NhwcTensor, out: NhwcTensor, pairs: Any, code: int) -> None:
    """PAD by a code."""
    graph.node("PAD", [x, graph.shape([int(v) for v in np.ravel(pairs)]), graph.constant(code, np.int8)], out)


def pad(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """PAD by the zero point, or by a value that the operator names."""
    x, code = given[0], qparams_of(given[0])[1]
    if len(given) > 2:
        (number,) = np.ravel(np.asarray(given[2].value))
        code = int(number)
        if given[2].qparams is None:
            code = int(np.clip(np.rint(np.float32(number) / np.float32(qparams_of(x)[0])) + qparams_of(x)[1], -128, 127))
    filled(graph, x, out, _numbers(given[1]), code)


def mirror(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """The borders by SLICE and REVERSE, joined with what they are the borders of."""
    x, pairs = given[0], np.reshape(_numbers(given[1]), (-1, 2))
    todo = [i for i, p in enumerate(pairs) if any(p)]
    for place, axis in enumerate(todo):
        parts = [x]
        for side, count in enumerate(int(v) for v in pairs[axis]):
            if not count:
                continue
            start = 1 if side == 0 else x.shape[axis] - 1 - count
            shape = [count if i == axis else n for i, n in enumerate(x.shape)]
            part, turned = (graph.tensor(f"{out.name}.axis{axis}.{side}.{n}", shape, x.qparams) for n in ("part", "turned"))
            cut(graph, x, part, [start if i == axis else 0 for i in range(len(shape))])
            graph.node("REVERSE", [part], turned, axis=axis)
            parts.insert(0 if side == 0 else len(parts), turned)
        shape = [sum(p.shape[i] for p in parts) if i == axis else n for i, n in enumerate(x.shape)]
        made = out if place == len(todo) - 1 else graph.tensor(f"{out.name}.axis{axis}", shape, x.qparams)
        joined(graph, parts, made, axis)
        x = made
    if not todo:
        graph.node("IDENTITY", [x], out)


def tile(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """TILE."""
    graph.node("TILE", [given[0], graph.shape(_numbers(given[1]))], out)


def nearest(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """RESIZE to the nearest entry: for whole factors f, entry i // f.

    Raises:
        DeployError: a factor that is no whole number.
    """
    x = given[0]
    sizes = list(zip(x.shape[1:3], out.shape[1:3], strict=True))
    if fields["alignCorners"] or any(b % a for a, b in sizes):
        do = "Resize by whole factors, or bilinearly."
        found = f"nearest neighbours of {x.shape[1:3]} to {out.shape[1:3]}"
        raise DeployError(where=f"tensor {out.name!r}", found=found, wanted="whole factors", do=do)
    places = [(2 * (b // a), 2, -(b // a)) for a, b in sizes]
    _resize(graph, x, out, places, NEAREST)


def bilinear(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """RESIZE with whole weights, and the RESCALE that divides by their sum.

    Raises:
        DeployError: sizes whose ratio has more than 11 bits.
    """
    x, corners = given[0], bool(fields["alignCorners"])
    places = [steps(a, b, corners) for a, b in zip(x.shape[1:3], out.shape[1:3], strict=True)]
    acc = graph.wide(f"{out.name}.sum", out.shape)
    _resize(graph, x, acc, places, BILINEAR)
    whole = places[0][0] * places[1][0]
    rescale(graph, acc, out, multiplier(np.asarray(1.0 / whole)))  # of codes with their zero point


def _resize(graph: TosaBuilder, x: NhwcTensor, out: NhwcTensor, places: list[tuple[int, int, int]], mode: int) -> None:
    sizes = list(zip(x.shape[1:3], out.shape[1:3], strict=True))
    if any(n > 2**11 for n, _, _ in places):
        do = "Resize by a ratio of smaller numbers."
        found = f"resizing {x.shape[1:3]} to {out.shape[1:3]}"
        raise DeployError(where=f"tensor {out.name!r}", found=found, wanted="ratios of at most 2^11", do=do)
    borders = [(b - 1) * d - (a - 1) * n + o for (a, b), (n, d, o) in zip(sizes, places, strict=True)]
    scales = [v for n, d, _ in places for v in (n, d)]
    offsets = [o for _, _, o in places]
    graph.node("RESIZE", [x, graph.shape(scales), graph.shape(offsets), graph.shape(borders)], out, mode=mode)


def _numbers(held: NhwcTensor) -> list[int]:
    return [int(v) for v in np.ravel(np.asarray(held.value))]


__all__ = ["bilinear", "concatenate", "filled", "mirror", "nearest", "pad", "reshape", "slices", "tile", "transpose"]
