"""Write reshapes, transposes, slices, pads, splits, concatenation and tiling as ONNX."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch

from qfunc.errors import DeployError
from qfunc.lowering.onnx.context import OpContext, known
from qfunc.lowering.onnx.dynamic_shapes import shape_operand, sizes, vector
from qfunc.lowering.onnx.formula import Write, Writer
from qfunc.lowering.onnx.reduction import dims_of
from qfunc.lowering.onnx.shape_inference import Shape
from qfunc.ops.indexing import element


def _reshape(c: OpContext) -> str:
    """Write Reshape."""
    return c.write("Reshape", c.input(), shape_operand(c, f"{c.name}.shape", c.shape()))


def _flatten(c: OpContext) -> str:
    """Write Flatten, or Reshape if more than one axis stays."""
    whole = c["start_dim"] == 1 and c["end_dim"] in (-1, c.shape().rank - 1)
    return c.write("Flatten", c.input(), axis=1) if whole else _reshape(c)


def _transpose(c: OpContext) -> str:
    """Write a transpose of two axes or by an order."""
    rank = c.shape().rank
    if c.takes("dims"):
        order = [d % rank for d in c["dims"]]
    elif c.takes("source"):
        order = _moved(c, rank)
    elif not c.takes("dim0"):  # the first two axes of three
        order = [1, 0, 2][:rank] if rank == 3 else list(range(rank))
    else:
        order, a, b = list(range(rank)), c["dim0"] % rank, c["dim1"] % rank
        order[a], order[b] = order[b], order[a]
    return c.write("Transpose", c.input(), perm=order)


def _moved(c: OpContext, rank: int) -> list[int]:
    places = [[d % rank for d in ((c[n],) if isinstance(c[n], int) else c[n])] for n in ("source", "destination")]
    order = [d for d in range(rank) if d not in places[0]]
    for to, given in sorted(zip(places[1], places[0], strict=True)):
        order.insert(to, given)
    return order


def _over_axes(op: str) -> Write:
    """Return the writer of Squeeze or Unsqueeze."""

    def write(c: OpContext) -> str:
        rank = c.shape().rank
        given = c["dim"] if c.takes("dim") else tuple(range(rank))  # squeeze() takes all of length 1
        dims = given if isinstance(given, list | tuple) else (given,)
        kept = [d for d in dims if op == "Unsqueeze" or c.shape().dims[d % rank] == 1]
        return c.write(op, c.input(), c.graph.integers(*kept, name=f"{c.name}.axes"))

    return write


def _expand(c: OpContext) -> str:
    """Write Expand; axes of the same size stay."""
    ours = c.shape().tried
    have = ((),) * (c.result.rank - len(ours)) + ours
    dims = [1 if d is None and h == t else e
            for d, h, t, e in zip(c.result.dims, have, c.result.tried, sizes(c, c.result), strict=True)]  # fmt: skip
    return c.write("Expand", c.input(), vector(c, dims, f"{c.name}.shape"))


def _pad(c: OpContext) -> str:
    """Write Pad."""
    rank, pads = c.shape().rank, list(c["pad"])
    begin, end = [0] * rank, [0] * rank
    for k in range(len(pads) // 2):
        begin[rank - 1 - k], end[rank - 1 - k] = pads[2 * k], pads[2 * k + 1]
    mode = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}[c["mode"]]
    filled = torch.tensor(c["value"] or 0, dtype=c.result.dtype)
    value = [c.graph.constant(filled, f"{c.name}.value")] if mode == "constant" else []
    return c.write("Pad", c.input(), vector(c, [*begin, *end], f"{c.name}.pads"), *value, mode=mode)


def _split(c: OpContext) -> list[str]:
    # Split if each part is read once, else Slices: the runtime splits codes only if all parts are codes.
    parts: tuple[Shape, ...] = c.shapes[c.node.name]
    axis = c["dim"] % c.shape().rank
    lengths = [known(c, p.dims[axis]) for p in parts]
    read: list[Any] = [n.args[1] for n in c.node.users if n.target in (element, operator.getitem)]
    used = [i % len(parts) for i in read] if len(read) == len(c.node.users) else list(range(len(parts)))  # parts[-1]
    if sorted(used) == list(range(len(parts))):
        sizes = c.graph.integers(*lengths, name=f"{c.name}.sizes")
        return c.graph.many("Split", [c.input(), sizes], [f"{c.name}.{i}" for i in range(len(parts))], axis=axis)
    names, start = [], 0
    for i, length in enumerate(lengths):
        if i in used:
            vectors = [
                c.graph.integers(v, name=f"{c.name}.{i}.{n}")
                for v, n in ((start, "start"), (start + length, "end"), (axis, "axis"))
            ]
            names.append(c.graph.node("Slice", [c.input(), *vectors], f"{c.name}.{i}"))
        else:
            names.append("")
        start += length
    return names


def _roll(c: OpContext) -> str:
    g, value, dims = c.graph, c.input(), c.shape().dims
    lengths = [dims[d] for d in c["dims"]]
    turns = [(s % n if n else s, d) for s, d, n in zip(c["shifts"], c["dims"], lengths, strict=True)]
    steps = [(s, d) for s, d in turns if s]  # a part without entries is no tensor of some formats
    # A copy: ONNX Runtime would concatenate the codes of one roll, but not those of two.
    copied = len(steps) < 2 and c.result.dtype == torch.float32
    if not steps:
        return c.write("Max" if copied else "Identity", value)
    for k, (shift, dim) in enumerate(steps):
        ends = []
        for part, (start, stop) in enumerate(((-shift, 2**62), (0, -shift))):
            vectors = [
                g.integers(v, name=f"{c.name}.{k}.{part}.{n}") for v, n in ((start, "start"), (stop, "end"), (dim, "axis"))
            ]
            ends.append(g.node("Slice", [value, *vectors], f"{c.name}.{k}.part_{part}"))
        last = k == len(steps) - 1 and not copied
        value = g.node("Concat", ends, c.name if last else f"{c.name}.{k}", axis=dim)
    return c.write("Max", value) if copied else value


def _repeat(c: OpContext) -> str:
    """Write Tile; Expand for a number of copies that varies, of axes with one entry: its sizes can be inferred."""
    g, source, more = c.graph, c.input(), len(c["repeats"]) - c.shape().rank
    dims = [*[1] * more, *c.shape().dims]
    if not all(isinstance(r, int) for r in c["repeats"]) and all(
        d == 1 or r == 1 for d, r in zip(dims, c["repeats"], strict=True)
    ):
        return c.write("Expand", source, vector(c, sizes(c, c.result), f"{c.name}.shape"))
    if more:
        source = g.node("Unsqueeze", [source, g.integers(*range(more), name=f"{c.name}.axes")], f"{c.name}.unsqueezed")
    return c.write("Tile", source, vector(c, c["repeats"], f"{c.name}.repeats"))


def _concat(c: OpContext) -> str:
    return c.write("Concat", *(c.read(n) for n in c["tensors"]), axis=c["dim"])


def _channel_shuffle(c: OpContext) -> str:
    channels, *spatial = (known(c, d) for d in c.shape().dims[1:])
    rest = list(range(3, 3 + len(spatial)))
    return regrouped(c, [c["groups"], channels // c["groups"], *spatial], [0, 2, 1, *rest])


def _flip(c: OpContext) -> str:
    dims = dims_of(c, "dims")
    columns = ([-1] * len(dims), [-(2**62)] * len(dims), dims, [-1] * len(dims))
    vectors = [
        c.graph.integers(*v, name=f"{c.name}.{n}") for v, n in zip(columns, ("start", "end", "axes", "step"), strict=True)
    ]
    return c.write("Slice", c.input(), *vectors)


def _repeat_interleave(c: OpContext) -> str:
    if not isinstance(c["repeats"], int) or c["dim"] is None:
        do = "Give repeats=number and dim."
        raise DeployError(where=f"op {c.name!r}", found="repeats by tensor or without dim", wanted="one number", do=do)
    axis = c["dim"] % c.shape().rank
    places = np.repeat(np.arange(known(c, c.shape().dims[axis])), c["repeats"])
    return c.write("Gather", c.input(), c.graph.constant(places.astype(np.int64), f"{c.name}.places"), axis=axis)


def _tile(c: OpContext) -> str:
    repeats = [1] * (c.shape().rank - len(c["dims"])) + list(c["dims"])
    return c.write("Tile", c.input(), c.graph.integers(*repeats, name=f"{c.name}.repeats"))


def _stack(c: OpContext) -> str:
    if not isinstance(c["tensors"], list | tuple):
        do = "Unpack the parts: a, b = x.unbind(0)."
        raise DeployError(
            where=f"op {c.name!r}", found="a stack of the whole result of an op with several results", wanted="tensors", do=do
        )
    g, axis = c.graph, c.graph.integers(c["dim"], name=f"{c.name}.axis")
    parts = [g.node("Unsqueeze", [c.read(n), axis], f"{c.name}.{k}") for k, n in enumerate(c["tensors"])]
    # A copy: ONNX Runtime would concatenate codes, for which "stack" has no kernel.
    joined = g.node("Concat", parts, f"{c.name}.joined", axis=c["dim"])
    return c.write("Max", joined) if c.result.dtype == torch.float32 else c.write("Identity", joined)


def _unbind(c: OpContext) -> list[str]:
    axis = c["dim"] % c.shape().rank
    count = known(c, c.shape().dims[axis])
    names, ones = [f"{c.name}.{k}.kept" for k in range(count)], c.graph.integers(*[1] * count, name=f"{c.name}.sizes")
    parts = c.graph.many("Split", [c.input(), ones], names, axis=axis)
    place = c.graph.integers(axis, name=f"{c.name}.axis")
    return [c.graph.node("Squeeze", [p, place], f"{c.name}.{k}") for k, p in enumerate(parts)]


def regrouped(c: OpContext, inner: list[int], order: list[int]) -> str:
    """Write Reshape, Transpose and Reshape, on codes if the unit has codes. The batch, the first axis, keeps its size."""
    g = c.graph
    split = c.quantize_inner(
        g.node("Reshape", [c.input(), g.integers(0, *inner, name=f"{c.name}.inner_shape")], f"{c.name}.split"), "after"
    )
    turned = c.quantize_inner(g.node("Transpose", [split], f"{c.name}.turned", perm=order), "after")
    outer = [known(c, d) for d in c.result.dims[1:]]
    return c.write("Reshape", turned, g.integers(0, *outer, name=f"{c.name}.shape"))


WRITERS: dict[str, Writer] = {
    "reshape": _reshape, "flatten": _flatten, "transpose": _transpose, "squeeze": _over_axes("Squeeze"),
    "unsqueeze": _over_axes("Unsqueeze"), "expand": _expand, "pad": _pad, "split": _split, "chunk": _split, "unbind": _unbind,
    "concat": _concat, "stack": _stack, "flip": _flip, "tile": _tile, "repeat": _repeat, "roll": _roll,
    "repeat_interleave": _repeat_interleave, "channel_shuffle": _channel_shuffle,
}  # fmt: skip
"""The writers of this family, by kind."""
