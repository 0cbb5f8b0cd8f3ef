"""How windows of images are written in ONNX: taken apart, put together, and averaged to another size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from qfunc.errors import DeployError
from qfunc.graph.rare_ops import antialiased
from qfunc.lowering.onnx_call import Call, known
from qfunc.lowering.onnx_formula import Write


def pair(value: int | tuple[int, ...], rank: int = 2) -> list[int]:
    """A number for each of `rank` axes.

    >>> pair(3)
    [3, 3]
    """
    return [value] * rank if isinstance(value, int) else [int(v) for v in value]


def _im2col(c: Call) -> str:
    # A grouped convolution that takes one entry of each window a channel.
    _images(c, 4)
    kernel, dilation, padding, stride = (pair(c[p]) for p in ("kernel_size", "dilation", "padding", "stride"))
    channels = known(c, c.shape().dims[1])
    given = {"kernel_shape": kernel, "dilations": dilation, "strides": stride, "pads": padding * 2, "group": channels}
    taken = c.graph.node("Conv", [c.input(), _entries(c, channels, kernel)], f"{c.name}.windows", **given)
    shape = c.graph.integers(0, channels * math.prod(kernel), -1, name=f"{c.name}.shape")
    # A copy: else ONNX Runtime would reshape codes.
    return c.write("Max", c.graph.node("Reshape", [taken, shape], f"{c.name}.columns"))


def _col2im(c: Call) -> str:
    # The transpose of im2col: each window is added where it was taken.
    _images(c, 3)
    kernel, dilation, padding, stride = (pair(c[p]) for p in ("kernel_size", "dilation", "padding", "stride"))
    size = pair(c["output_size"])
    axes = list(zip(size, kernel, dilation, padding, stride, strict=True))
    counts = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in axes]
    left = [(n + 2 * p - d * (k - 1) - 1) % s for n, k, d, p, s in axes]
    columns = known(c, c.shape().dims[1])
    shape = c.graph.integers(0, columns, *counts, name=f"{c.name}.shape")
    given = {"kernel_shape": kernel, "dilations": dilation, "strides": stride, "pads": padding * 2, "output_padding": left}
    channels = columns // math.prod(kernel)
    image = c.graph.node("Reshape", [c.input(), shape], f"{c.name}.windows")
    return c.write("ConvTranspose", image, _entries(c, channels, kernel), group=channels, **given)


def _images(c: Call, rank: int) -> None:
    if c.shape().rank != rank:
        do = "Add a batch axis."
        raise DeployError(where=f"op {c.name!r}", found=f"rank {c.shape().rank}", wanted=f"rank {rank}", do=do)


def _entries(c: Call, channels: int, kernel: list[int]) -> str:
    # For each channel a kernel for each entry of a window, 1 there and 0 elsewhere.
    count = math.prod(kernel)
    one = np.tile(np.eye(count, dtype=np.float32).reshape(count, 1, *kernel), (channels, 1, 1, 1))
    return c.graph.constant(one, f"{c.name}.entries")


def _windows(c: Call) -> str:
    # One Gather by the places of each window, whose axis then goes to the end.
    axis, rank = c["dimension"] % c.shape().rank, c.shape().rank
    length = known(c, c.shape().dims[axis])
    places = np.arange(0, length - c["size"] + 1, c["step"])[:, None] + np.arange(c["size"])
    indices = c.graph.constant(places.astype(np.int64), f"{c.name}.places")
    taken = c.graph.node("Gather", [c.input(), indices], f"{c.name}.windows", axis=axis)
    order = [*range(axis + 1), *range(axis + 2, rank + 1), axis + 1]
    # A copy: else ONNX Runtime would transpose codes.
    last = c.graph.node("Transpose", [taken], f"{c.name}.last", perm=order)
    return c.write("Max" if c.result.dtype == torch.float32 else "Identity", last)


def _antialias(c: Call) -> str:
    # Along each axis a matrix that torch makes of the identity: Y = A X B^T.
    height, width = (known(c, d) for d in c.shape().dims[2:])
    high, wide = (known(c, d) for d in c.result.dims[2:])
    factors = (None, None) if c["scale_factor"] is None else _each(c["scale_factor"])
    rows = _matrix(c, height, (high, height), (factors[0], 1.0))
    columns = _matrix(c, width, (width, wide), (1.0, factors[1]))
    g = c.graph
    tall = g.node("MatMul", [g.constant(rows, f"{c.name}.rows"), c.input()], f"{c.name}.tall")
    return c.write("MatMul", tall, g.constant(columns, f"{c.name}.columns"))


def _each(value: Any) -> tuple[float, float]:
    first, second = value if isinstance(value, list | tuple) else (value, value)
    return float(first), float(second)


def _matrix(c: Call, length: int, size: tuple[int, int], factors: tuple[float | None, ...]) -> Any:
    rest = c["mode"], c["align_corners"], c["recompute_scale_factor"]
    eye = torch.eye(length)[None, None]
    made = antialiased(eye, size, None, *rest) if None in factors else antialiased(eye, None, factors, *rest)  # type: ignore[arg-type]
    return made[0, 0].numpy()


WINDOW_WRITERS: dict[str, Write] = {"im2col": _im2col, "col2im": _col2im, "windows": _windows, "antialias": _antialias}
"""The writers of this file, by kind."""
