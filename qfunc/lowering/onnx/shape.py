"""Write reshapes, transposes, slices, pads, splits, concatenation and tiling as ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from qfunc.errors import DeployError
from qfunc.lowering.onnx.context import OpContext, known
from qfunc.lowering.onnx.dynamic_shapes import number, shape_operand, sizes, vector
from qfunc.lowering.onnx.image import _regrouped
from qfunc.lowering.onnx.reduction import dims_of
from qfunc.lowering.onnx.shape_inference import Shape


def write_reshape(c: OpContext) -> str:
    """Reshape."""
    return c.write("Reshape", c.input(), shape_operand(c, f"{c.name}.shape", c.shape()))


def write_flatten(c: OpContext) -> str:
    """Flatten, or Reshape where it keeps more than one axis."""
    whole = c["start_dim"] == 1 and c["end_dim"] in (-1, c.shape().rank - 1)
    return c.write("Flatten", c.input(), axis=1) if whole else write_reshape(c)


def write_transpose(c: OpContext) -> str:
    """Transpose of two axes or by an order."""
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


def over_axes(op: str) -> Callable[[OpContext], str]:
    """Squeeze and Unsqueeze."""

    def write(c: OpContext) -> str:
        rank = c.shape().rank
        given = c["dim"] if c.takes("dim") else tuple(range(rank))  # squeeze() takes all of length 1
        dims = given if isinstance(given, list | tuple) else (given,)
        kept = [d for d in dims if op == "Unsqueeze" or c.shape().dims[d % rank] == 1]
        return c.write(op, c.input(), c.graph.integers(*kept, name=f"{c.name}.axes"))

    return write


def write_slice(c: OpContext) -> str:
    """Indexing by numbers, slices, None and ... ."""
    index = c["index"] if isinstance(c["index"], tuple | list) else (c["index"],)
    index = [_numbers(c, i) for i in index]
    if any(not isinstance(i, int | slice | None | type(Ellipsis)) for i in index):
        do = "Index with numbers and slices."
        raise DeployError(where=f"op {c.name!r}", found=f"indexing by {index}", wanted="numbers, slices, None or ...", do=do)
    rank, used = c.shape().rank, sum(i is not None and i is not Ellipsis for i in index)
    place = next((k for k, i in enumerate(index) if i is Ellipsis), len(index))
    full = [*index[:place], *[slice(None)] * (rank - used), *index[place + 1 :]]
    cuts: list[tuple[Any, Any, int, int]] = []
    gone: list[int] = []
    new: list[int] = []
    axis = 0
    for at, entry in enumerate(full):
        if entry is None:
            new.append(at - len(gone))
            continue
        if isinstance(entry, int):
            cuts.append((entry, entry + 1 if entry != -1 else 2**62, axis, 1))
            gone.append(axis)
        elif (entry.start, entry.stop, entry.step) not in ((None, None, None), (0, None, None), (0, None, 1), (None, None, 1)):
            cuts.append((entry.start or 0, 2**62 if entry.stop is None else entry.stop, axis, entry.step or 1))
        axis += 1
    return _sliced(c, cuts, gone, new)


def _numbers(c: OpContext, entry: Any) -> Any:
    # What is computed from sizes that never vary is a plain number.
    if isinstance(entry, slice):
        return slice(*(number(c, v) for v in (entry.start, entry.stop, entry.step)))
    return number(c, entry)


def _sliced(c: OpContext, cuts: list[tuple[Any, Any, int, int]], gone: list[int], new: list[int]) -> str:
    g, value = c.graph, c.input()
    steps: list[tuple[str, list[list[Any]]]] = []
    if cuts or not (gone or new):
        columns = [list(column) for column in zip(*cuts, strict=True)] if cuts else [[0], [2**62], [0], [1]]
        steps.append(("Slice", columns))
    steps += [("Squeeze", [gone])] if gone else []
    steps += [("Unsqueeze", [new])] if new else []
    for k, (op, vectors) in enumerate(steps):
        arguments = [vector(c, v, f"{c.name}.{op.lower()}_{i}") for i, v in enumerate(vectors)]
        last = k == len(steps) - 1
        made = g.node(op, [value, *arguments], c.name if last else f"{c.name}.{op.lower()}")
        value = made if last else c.between(made, "after")
    return value


def write_expand(c: OpContext) -> str:
    """Expand; axes that the input has already stay."""
    ours = c.shape().tried
    have = ((),) * (c.result.rank - len(ours)) + ours
    dims = [1 if d is None and h == t else e
            for d, h, t, e in zip(c.result.dims, have, c.result.tried, sizes(c, c.result), strict=True)]  # fmt: skip
    return c.write("Expand", c.input(), vector(c, dims, f"{c.name}.shape"))


def write_pad(c: OpContext) -> str:
    """Pad."""
    rank, pads = c.shape().rank, list(c["pad"])
    begin, end = [0] * rank, [0] * rank
    for k in range(len(pads) // 2):
        begin[rank - 1 - k], end[rank - 1 - k] = pads[2 * k], pads[2 * k + 1]
    mode = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}[c["mode"]]
    value = [c.graph.number(float(c["value"] or 0), f"{c.name}.value")] if mode == "constant" else []
    return c.write("Pad", c.input(), vector(c, [*begin, *end], f"{c.name}.pads"), *value, mode=mode)


def write_split(c: OpContext, used: list[Any]) -> list[str]:
    """Split and chunk: the names of all parts.

    Unless each part is taken out once, as slices: the runtime splits codes only if all parts are codes.
    """
    parts: tuple[Shape, ...] = c.shapes[c.node.name]
    axis = c["dim"] % c.shape().rank
    lengths = [known(c, p.dims[axis]) for p in parts]
    used = [i % len(parts) for i in used]  # parts[-1]
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
    g, value = c.graph, c.input()
    steps = list(zip(c["shifts"], c["dims"], strict=True))
    for k, (shift, dim) in enumerate(steps):
        ends = []
        for part, (start, stop) in enumerate(((-shift, 2**62), (0, -shift))):
            vectors = [
                g.integers(v, name=f"{c.name}.{k}.{part}.{n}") for v, n in ((start, "start"), (stop, "end"), (dim, "axis"))
            ]
            ends.append(g.node("Slice", [value, *vectors], f"{c.name}.{k}.part_{part}"))
        value = g.node("Concat", ends, c.name if k == len(steps) - 1 else f"{c.name}.{k}", axis=dim)
    return value


def _repeat(c: OpContext) -> str:
    g, source, more = c.graph, c.input(), len(c["repeats"]) - c.shape().rank
    if more:
        source = g.node("Unsqueeze", [source, g.integers(*range(more), name=f"{c.name}.axes")], f"{c.name}.unsqueezed")
    return c.write("Tile", source, vector(c, c["repeats"], f"{c.name}.repeats"))


def _concat(c: OpContext) -> str:
    return c.write("Concat", *(c.read(n) for n in c["tensors"]), axis=c["dim"])


def _channel_shuffle(c: OpContext) -> str:
    channels, *spatial = (known(c, d) for d in c.shape().dims[1:])
    rest = list(range(3, 3 + len(spatial)))
    return _regrouped(c, [c["groups"], channels // c["groups"], *spatial], [0, 2, 1, *rest])


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
        do = "Name the parts: a, b = x.unbind(0)."
        raise DeployError(
            where=f"op {c.name!r}", found="a stack of what another op returns as a whole", wanted="tensors", do=do
        )
    g, axis = c.graph, c.graph.integers(c["dim"], name=f"{c.name}.axis")
    parts = [g.node("Unsqueeze", [c.read(n), axis], f"{c.name}.{k}") for k, n in enumerate(c["tensors"])]
    # A copy behind it: ONNX Runtime would join codes, which no kernel of "stack" does.
    joined = g.node("Concat", parts, f"{c.name}.joined", axis=c["dim"])
    return c.write("Max", joined) if c.result.dtype == torch.float32 else c.write("Identity", joined)


def _unbind(c: OpContext) -> list[str]:
    axis = c["dim"] % c.shape().rank
    count = known(c, c.shape().dims[axis])
    names, ones = [f"{c.name}.{k}.kept" for k in range(count)], c.graph.integers(*[1] * count, name=f"{c.name}.sizes")
    parts = c.graph.many("Split", [c.input(), ones], names, axis=axis)
    place = c.graph.integers(axis, name=f"{c.name}.axis")
    return [c.graph.node("Squeeze", [p, place], f"{c.name}.{k}") for k, p in enumerate(parts)]
