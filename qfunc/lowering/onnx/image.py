"""Write resizing, grid sampling, pixel shuffles and windows as ONNX."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from qfunc.errors import DeployError
from qfunc.lowering.onnx.context import OpContext, known, per_axis
from qfunc.lowering.onnx.dynamic_shapes import sizes, vector
from qfunc.lowering.onnx.formula import Write
from qfunc.lowering.onnx.shape import regrouped
from qfunc.lowering.onnx.shape_inference import Varying
from qfunc.ops.image import antialiased


def _shuffle(c: OpContext) -> str:
    _images(c, 4)
    return c.write("DepthToSpace", c.input(), blocksize=c["upscale_factor"], mode="CRD")


def _unshuffle(c: OpContext) -> str:
    _images(c, 4)
    f, (channels, height, width) = c["downscale_factor"], (known(c, d) for d in c.shape().dims[1:])
    return regrouped(c, [channels, height // f, f, width // f, f], [0, 1, 3, 5, 2, 4])


def _grid_sample(c: OpContext) -> str:
    modes = ("linear", "cubic") if c.graph.opset >= 20 else ("bilinear", "bicubic")
    mode = {"bilinear": modes[0], "bicubic": modes[1]}.get(c["mode"], c["mode"])
    corners = int(bool(c["align_corners"]))
    return c.write("GridSample", c.input(), c.input("grid"), mode=mode, padding_mode=c["padding_mode"], align_corners=corners)


def _im2col(c: OpContext) -> str:
    # A grouped convolution with one output channel for each entry of a window.
    _images(c, 4)
    kernel, dilation, padding, stride = (per_axis(c[p]) for p in ("kernel_size", "dilation", "padding", "stride"))
    channels = known(c, c.shape().dims[1])
    attributes = {"kernel_shape": kernel, "dilations": dilation, "strides": stride, "pads": padding * 2, "group": channels}
    windows = c.graph.node("Conv", [c.input(), _entries(c, channels, kernel)], f"{c.name}.windows", **attributes)
    shape = c.graph.integers(0, channels * math.prod(kernel), -1, name=f"{c.name}.shape")
    # A copy: ONNX Runtime would reshape codes.
    return c.write("Max", c.graph.node("Reshape", [windows, shape], f"{c.name}.columns"))


def _col2im(c: OpContext) -> str:
    # The transpose of im2col: each window is added at its place in the image.
    _images(c, 3)
    kernel, dilation, padding, stride = (per_axis(c[p]) for p in ("kernel_size", "dilation", "padding", "stride"))
    size = per_axis(c["output_size"])
    axes = list(zip(size, kernel, dilation, padding, stride, strict=True))
    counts = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in axes]
    output_padding = [(n + 2 * p - d * (k - 1) - 1) % s for n, k, d, p, s in axes]
    columns = known(c, c.shape().dims[1])
    shape = c.graph.integers(0, columns, *counts, name=f"{c.name}.shape")
    attributes = {
        "kernel_shape": kernel,
        "dilations": dilation,
        "strides": stride,
        "pads": padding * 2,
        "output_padding": output_padding,
    }
    channels = columns // math.prod(kernel)
    image = c.graph.node("Reshape", [c.input(), shape], f"{c.name}.windows")
    return c.write("ConvTranspose", image, _entries(c, channels, kernel), group=channels, **attributes)


def _images(c: OpContext, rank: int) -> None:
    if c.shape().rank != rank:
        do = "Add a batch axis."
        raise DeployError(where=f"op {c.name!r}", found=f"rank {c.shape().rank}", wanted=f"rank {rank}", do=do)


def _entries(c: OpContext, channels: int, kernel: list[int]) -> str:
    # For each channel one kernel for each entry of a window: 1 at the entry, 0 elsewhere.
    count = math.prod(kernel)
    one = np.tile(np.eye(count, dtype=np.float32).reshape(count, 1, *kernel), (channels, 1, 1, 1))
    return c.graph.constant(one, f"{c.name}.entries")


def _windows(c: OpContext) -> str:
    # One Gather by the indices of each window; then the axis of the windows becomes the last.
    axis, rank = c["dimension"] % c.shape().rank, c.shape().rank
    length = known(c, c.shape().dims[axis])
    positions = np.arange(0, length - c["size"] + 1, c["step"])[:, None] + np.arange(c["size"])
    indices = c.graph.constant(positions.astype(np.int64), f"{c.name}.places")
    windows = c.graph.node("Gather", [c.input(), indices], f"{c.name}.windows", axis=axis)
    order = [*range(axis + 1), *range(axis + 2, rank + 1), axis + 1]
    # A copy: ONNX Runtime would transpose codes.
    last = c.graph.node("Transpose", [windows], f"{c.name}.last", perm=order)
    return c.write("Max" if c.result.dtype == torch.float32 else "Identity", last)


def _antialias(c: OpContext) -> str:
    # Y = A X B^T, where torch computes the matrix of each axis from the identity.
    height, width = (known(c, d) for d in c.shape().dims[2:])
    high, wide = (known(c, d) for d in c.result.dims[2:])
    factors = (None, None) if c["scale_factor"] is None else _factors(c["scale_factor"])
    rows = _matrix(c, height, (high, height), (factors[0], 1.0))
    columns = _matrix(c, width, (width, wide), (1.0, factors[1]))
    g = c.graph
    left_product = g.node("MatMul", [g.constant(rows, f"{c.name}.rows"), c.input()], f"{c.name}.tall")
    return c.write("MatMul", left_product, g.constant(columns, f"{c.name}.columns"))


def _factors(value: Any) -> tuple[float, float]:
    first, second = value if isinstance(value, list | tuple) else (value, value)
    return float(first), float(second)


def _matrix(c: OpContext, length: int, size: tuple[int, int], factors: tuple[float | None, ...]) -> Any:
    rest = c["mode"], c["align_corners"], c["recompute_scale_factor"]
    eye = torch.eye(length)[None, None]
    matrix = antialiased(eye, size, None, *rest) if None in factors else antialiased(eye, None, factors, *rest)  # type: ignore[arg-type]
    return matrix[0, 0].numpy()


def _resize(c: OpContext) -> str:
    """Resize by factors or to sizes, with torch's coordinates."""
    if c["mode"] == "area":
        return _area(c)
    named = {"nearest": "nearest", "nearest-exact": "nearest", "bicubic": "cubic"}
    mode = named.get(c["mode"], "linear" if c["mode"] in ("linear", "bilinear", "trilinear") else None)
    if mode is None:
        wanted = "nearest, nearest-exact, linear, bilinear, trilinear, bicubic or area"
        raise DeployError(where=f"op {c.name!r}", found=f"mode {c['mode']!r}", wanted=wanted, do="Use one of these modes.")
    corners = "align_corners" if c["align_corners"] else "half_pixel"
    attributes: dict[str, Any] = {"coordinate_transformation_mode": corners, "mode": mode}
    if mode == "nearest":
        exact = c["mode"] == "nearest-exact"
        attributes |= {"coordinate_transformation_mode": "half_pixel" if exact else "asymmetric"}
        attributes |= {"nearest_mode": "round_prefer_ceil" if exact else "floor"}
    if mode == "cubic":
        attributes |= {"cubic_coeff_a": -0.75}
    spatial, source = c.result.dims[2:], c.shape().dims[2:]
    factor = c["scale_factor"]
    if factor is not None and not c["recompute_scale_factor"]:
        factors = [float(f) for f in (factor if isinstance(factor, list | tuple) else (factor,) * len(spatial))]
    else:
        found = [_factor(int(a or 0), int(b or 0), c["mode"] == "nearest") for a, b in zip(source, spatial, strict=True)]
        if None in found:
            lengths = [*sizes(c, c.result)[:2], *_requested(c)]
            return c.write("Resize", c.input(), "", "", vector(c, lengths, f"{c.name}.sizes"), **attributes)
        factors = [f for f in found if f is not None]
    scales = c.graph.constant(np.array([1.0, 1.0, *factors], np.float32), f"{c.name}.scales")
    return c.write("Resize", c.input(), "", scales, **attributes)


def _requested(c: OpContext) -> list[Any]:
    # The sizes: as computed if `size` lists them, else those of the result.
    given, found = c["size"], sizes(c, c.result)[2:]
    listed = isinstance(given, list | tuple) and len(given) == len(found)
    return [size if isinstance(f, Varying) else f for size, f in zip(given if listed else found, found, strict=True)]


def _factor(have: int, want: int, nearest: bool) -> float | None:
    # A float32 near want / have with which ONNX computes `want` entries at the positions of torch, or None.
    if not have or not want:
        return None
    exact, place = np.float32(want / have), np.arange(want, dtype=np.float32)
    for factor in (exact, np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(0))):
        same = (np.floor(place / factor) == np.floor(place * np.float32(have / want))).all() or not nearest
        if int(have * float(factor)) == want and same:
            return float(factor)
    return None


def _area(c: OpContext) -> str:
    # "area" is adaptive average pooling.
    out, source = c.result.dims[2:], c.shape().dims[2:]
    if any(not s or not o or s % o for s, o in zip(source, out, strict=True)):
        do = "Resize to a divisor of the size, or use another mode."
        raise DeployError(where=f"op {c.name!r}", found=f"mode 'area' from {source} to {out}", wanted="whole windows", do=do)
    kernel = [int(s) // int(o) for s, o in zip(source, out, strict=True)]  # type: ignore[arg-type]
    pooled = c.graph.node("AveragePool", [c.input()], f"{c.name}.pooled", kernel_shape=kernel, strides=kernel)
    return c.write("Max", pooled)  # a copy: ONNX Runtime would pool codes, for which "resize" has no kernel


WRITERS: dict[str, Write] = {
    "resize": _resize, "antialias": _antialias, "grid_sample": _grid_sample, "pixel_shuffle": _shuffle,
    "pixel_unshuffle": _unshuffle, "im2col": _im2col, "col2im": _col2im, "windows": _windows,
}  # fmt: skip
"""The writers of this family, by kind."""
