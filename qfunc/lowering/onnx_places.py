"""How ops that choose, repeat and regroup entries are written in ONNX."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from qfunc.errors import DeployError
from qfunc.lowering.onnx_call import Call, known
from qfunc.lowering.onnx_reduce import dims_of


def _shuffle(c: Call) -> str:
    if c.shape().rank != 4:
        do = "Add a batch axis."
        raise DeployError(where=f"op {c.name!r}", found=f"rank {c.shape().rank}", wanted="rank 4", do=do)
    return c.write("DepthToSpace", c.input(), blocksize=c["upscale_factor"], mode="CRD")


def _regrouped(c: Call, inner: list[int], order: list[int]) -> str:
    # Reshape, Transpose, Reshape, on codes where the unit has them; the batch is the first axis, 0 keeps it.
    g = c.graph
    split = c.between(
        g.node("Reshape", [c.input(), g.integers(0, *inner, name=f"{c.name}.inner_shape")], f"{c.name}.split"), "after"
    )
    turned = c.between(g.node("Transpose", [split], f"{c.name}.turned", perm=order), "after")
    outer = [known(c, d) for d in c.result.dims[1:]]
    return c.write("Reshape", turned, g.integers(0, *outer, name=f"{c.name}.shape"))


def _unshuffle(c: Call) -> str:
    f, (channels, height, width) = c["downscale_factor"], (known(c, d) for d in c.shape().dims[1:])
    return _regrouped(c, [channels, height // f, f, width // f, f], [0, 1, 3, 5, 2, 4])


def _channel_shuffle(c: Call) -> str:
    channels, *spatial = (known(c, d) for d in c.shape().dims[1:])
    rest = list(range(3, 3 + len(spatial)))
    return _regrouped(c, [c["groups"], channels // c["groups"], *spatial], [0, 2, 1, *rest])


def _flip(c: Call) -> str:
    dims = dims_of(c, "dims")
    columns = ([-1] * len(dims), [-(2**62)] * len(dims), dims, [-1] * len(dims))
    vectors = [
        c.graph.integers(*v, name=f"{c.name}.{n}") for v, n in zip(columns, ("start", "end", "axes", "step"), strict=True)
    ]
    return c.write("Slice", c.input(), *vectors)


def _repeat_interleave(c: Call) -> str:
    if not isinstance(c["repeats"], int) or c["dim"] is None:
        do = "Give repeats=number and dim."
        raise DeployError(where=f"op {c.name!r}", found="repeats by tensor or without dim", wanted="one number", do=do)
    axis = c["dim"] % c.shape().rank
    places = np.repeat(np.arange(known(c, c.shape().dims[axis])), c["repeats"])
    return c.write("Gather", c.input(), c.graph.constant(places.astype(np.int64), f"{c.name}.places"), axis=axis)


def _tile(c: Call) -> str:
    repeats = [1] * (c.shape().rank - len(c["dims"])) + list(c["dims"])
    return c.write("Tile", c.input(), c.graph.integers(*repeats, name=f"{c.name}.repeats"))


def _repeat_heads(c: Call) -> str:
    heads, times = known(c, c.shape().dims[-3]), known(c, c.shape("like").dims[-3])
    places = np.repeat(np.arange(heads), times // heads).astype(np.int64)
    return c.write("Gather", c.input(), c.graph.constant(places, f"{c.name}.places"), axis=c.shape().rank - 3)


def _take(c: Call) -> str:
    places = c.graph.constant(np.array(c["places"], np.int64), f"{c.name}.places")
    return c.write("Gather", c.input(), places, axis=c["dim"])


def _stack(c: Call) -> str:
    if not isinstance(c["tensors"], list | tuple):
        do = "Name the parts: a, b = x.unbind(0)."
        raise DeployError(
            where=f"op {c.name!r}", found="a stack of what another op returns as a whole", wanted="tensors", do=do
        )
    g, axis = c.graph, c.graph.integers(c["dim"], name=f"{c.name}.axis")
    parts = [g.node("Unsqueeze", [c.read(n), axis], f"{c.name}.{k}") for k, n in enumerate(c["tensors"])]
    # A copy behind it: ONNX Runtime would join codes, which no kernel of "stack" does.
    joined = g.node("Concat", parts, f"{c.name}.joined", axis=c["dim"])
    return c.write("Max", joined) if c.result.dtype == torch.float32 else c.write("Identity", joined)


def _grid_sample(c: Call) -> str:
    modes = ("linear", "cubic") if c.graph.opset >= 20 else ("bilinear", "bicubic")
    mode = {"bilinear": modes[0], "bicubic": modes[1]}.get(c["mode"], c["mode"])
    corners = int(bool(c["align_corners"]))
    return c.write("GridSample", c.input(), c.input("grid"), mode=mode, padding_mode=c["padding_mode"], align_corners=corners)


def _one_hot(c: Call) -> str:
    g = c.graph
    depth = g.constant(np.array(c["num_classes"], np.int64), f"{c.name}.depth")
    return c.write("OneHot", c.input("indices"), depth, g.constant(np.array([0, 1], np.int64), f"{c.name}.values"), axis=-1)


def _outer(c: Call) -> str:
    column = c.graph.node("Unsqueeze", [c.input(), c.graph.integers(1, name=f"{c.name}.axis")], f"{c.name}.column")
    return c.write("Mul", column, c.input("vec2"))


PLACE_WRITERS: dict[str, Callable[[Call], str]] = {
    "pixel_shuffle": _shuffle, "pixel_unshuffle": _unshuffle, "channel_shuffle": _channel_shuffle, "flip": _flip,
    "grid_sample": _grid_sample, "repeat_interleave": _repeat_interleave, "tile": _tile, "repeat_heads": _repeat_heads,
    "take": _take, "stack": _stack, "one_hot": _one_hot, "outer": _outer,
}  # fmt: skip
"""The writers of this file, by kind."""
