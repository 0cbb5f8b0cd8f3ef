"""Write indexing, gathering, one-hot and embedding as ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx

from qfunc.errors import DeployError
from qfunc.lowering.onnx.builder import element_type
from qfunc.lowering.onnx.context import OpContext
from qfunc.lowering.onnx.creation import operands
from qfunc.lowering.onnx.dynamic_shapes import number, sizes, vector
from qfunc.lowering.onnx.formula import Write
from qfunc.ops.node import is_constant


def _where(c: OpContext) -> str:
    given = [*operands(c, torch.bool, "condition"), *operands(c, c.result.dtype, "input", "other")]
    if c.result.dtype != torch.float32:
        return c.write("Where", *given)
    # A copy: ONNX Runtime would select among codes, even if one of the values has no codes.
    return c.write("Max", c.graph.node("Where", given, f"{c.name}.chosen"))


def _triangle(upper: int) -> Write:
    def write(c: OpContext) -> str:
        offset = c.graph.constant(np.array(c["diagonal"], np.int64), f"{c.name}.diagonal")
        return c.write("Trilu", c.input("value"), offset, upper=upper)

    return write


def _index(c: OpContext) -> str:
    if c.takes("dim"):
        places = c.input("index")
        if not c.shape("index").rank:  # the axis stays
            places = c.graph.node("Reshape", [places, c.graph.integers(1, name=f"{c.name}.one")], f"{c.name}.places")
        return c.write("Gather", c.input(), places, axis=c["dim"] % len(c.result.dims))
    given = [(k, i) for k, i in enumerate(c["indices"]) if i is not None]
    axes = [k for k, _ in given]
    if len(given) == 1:
        return c.write("Gather", c.input(), c.read(given[0][1]), axis=axes[0])
    if axes != list(range(axes[0], axes[0] + len(axes))):
        do = "Index axes that are neighbours, or one axis at a time."
        raise DeployError(
            where=f"op {c.name!r}", found=f"positions on the axes {axes}", wanted="one axis, or neighbours", do=do
        )
    # The axes become one, because ONNX Runtime gathers codes along one axis only.
    dims = sizes(c, c.shape())
    joined = vector(c, [*[0] * axes[0], -1, *dims[axes[-1] + 1 :]], f"{c.name}.joined_shape")
    rows = c.quantize_inner(c.graph.node("Reshape", [c.input(), joined], f"{c.name}.joined"), "after")
    return c.write("Gather", rows, _joined_positions(c, [(dims[k], i) for k, i in given]), axis=axes[0])


def _joined_positions(c: OpContext, given: list[tuple[Any, fx.Node]]) -> str:
    # i0 n1 n2 + i1 n2 + i2, where each place counts from the start of its axis.  The first one may count from the end: so
    # does the sum then, and the size of that axis, in most models the batch, need not be known.
    g, (first, *others) = c.graph, given
    if all(is_constant(i) for _, i in given) and all(isinstance(n, int) for n, _ in others):
        total = c.constant_value(first[1]).long()
        total = total % first[0] if isinstance(first[0], int) else total
        for n, i in others:
            total = total * n + c.constant_value(i).long() % n
        return g.constant(total, f"{c.name}.positions")
    zero = g.integers(0, name=f"{c.name}.only_axis")
    found = g.node("Cast", [c.read(first[1])], f"{c.name}.positions_0", to=element_type(torch.int64))
    for k, (n, i) in enumerate(others, 1):
        size = g.node("Squeeze", [vector(c, [n], f"{c.name}.size_{k}"), zero], f"{c.name}.length_{k}")
        place = g.node("Cast", [c.read(i)], f"{c.name}.positions_{k}", to=element_type(torch.int64))
        place = g.node("Mod", [place, size], f"{c.name}.from_start_{k}")
        found = g.node("Add", [g.node("Mul", [found, size], f"{c.name}.before_{k}"), place], f"{c.name}.sum_{k}")
    return found


def _gather(c: OpContext) -> str:
    return c.write("GatherElements", c.input(), c.input("index"), axis=c["dim"])


def _index_put(c: OpContext) -> str:
    if c.takes("src"):
        index, given = c.shape("index"), c.shape("src")
        if (index.dims, index.tried) != (given.dims, given.tried):
            found = f"an index of the shape {_printed(index.dims)} and values of {_printed(given.dims)}"
            do = "Cut the values to the shape of the index before torch.scatter."
            raise DeployError(where=f"op {c.name!r}", found=found, wanted="one shape, as ScatterElements requires", do=do)
        return c.write("ScatterElements", c.input(), c.input("index"), c.input("src"), axis=c["dim"])
    # ScatterElements has one index for each value: both are expanded to the shape of the entries that they replace.
    g, axis, rank = c.graph, c["dim"] % c.shape().rank, c.shape().rank
    places = g.node("Reshape", [c.input("index"), g.integers(-1, name=f"{c.name}.flat")], f"{c.name}.places")
    replaced = g.node("Shape", [g.node("Gather", [c.input(), places], f"{c.name}.before", axis=axis)], f"{c.name}.replaced")
    column = g.integers(-1, *[1] * (rank - axis - 1), name=f"{c.name}.column")
    wide = g.node("Expand", [g.node("Reshape", [places, column], f"{c.name}.along"), replaced], f"{c.name}.index")
    values = g.node("Expand", [c.input("values"), replaced], f"{c.name}.after")
    return c.write("ScatterElements", c.input(), wide, values, axis=axis)


def _printed(dims: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("n" if d is None else str(d) for d in dims) + "]"


def _embedding(c: OpContext) -> str:
    return c.write("Gather", c.input("weight"), c.input("indices"), axis=0)


def _take(c: OpContext) -> str:
    places = c.graph.constant(np.array(c["places"], np.int64), f"{c.name}.places")
    return c.write("Gather", c.input(), places, axis=c["dim"])


def _one_hot(c: OpContext) -> str:
    g = c.graph
    depth = g.constant(np.array(c["num_classes"], np.int64), f"{c.name}.depth")
    return c.write("OneHot", c.input("indices"), depth, g.constant(np.array([0, 1], np.int64), f"{c.name}.values"), axis=-1)


def _slice(c: OpContext) -> str:
    """Write indexing by numbers, slices, None and ... ."""
    index = c["index"] if isinstance(c["index"], tuple | list) else (c["index"],)
    index = [_constant_numbers(c, i) for i in index]
    if any(not isinstance(i, int | slice | None | type(Ellipsis)) for i in index):
        do = "Index with numbers and slices."
        raise DeployError(where=f"op {c.name!r}", found=f"indexing by {index}", wanted="numbers, slices, None or ...", do=do)
    rank, used = c.shape().rank, sum(i is not None and i is not Ellipsis for i in index)
    place = next((k for k, i in enumerate(index) if i is Ellipsis), len(index))
    full = [*index[:place], *[slice(None)] * (rank - used), *index[place + 1 :]]
    cuts: list[tuple[Any, Any, int, int]] = []
    squeezed: list[int] = []
    unsqueezed: list[int] = []
    axis = 0
    for at, entry in enumerate(full):
        if entry is None:
            unsqueezed.append(at - len(squeezed))
            continue
        if isinstance(entry, int):
            cuts.append((entry, entry + 1 if entry != -1 else 2**62, axis, 1))
            squeezed.append(axis)
        elif (entry.start, entry.stop, entry.step) not in ((None, None, None), (0, None, None), (0, None, 1), (None, None, 1)):
            cuts.append((entry.start or 0, 2**62 if entry.stop is None else entry.stop, axis, entry.step or 1))
        axis += 1
    return _sliced(c, cuts, squeezed, unsqueezed)


def _constant_numbers(c: OpContext, entry: Any) -> Any:
    # A number computed from fixed sizes is a constant.
    if isinstance(entry, slice):
        return slice(*(number(c, v) for v in (entry.start, entry.stop, entry.step)))
    return number(c, entry)


def _sliced(c: OpContext, cuts: list[tuple[Any, Any, int, int]], squeezed: list[int], unsqueezed: list[int]) -> str:
    g, value = c.graph, c.input()
    steps: list[tuple[str, list[list[Any]]]] = []
    if cuts or not (squeezed or unsqueezed):
        columns = [list(column) for column in zip(*cuts, strict=True)] if cuts else [[0], [2**62], [0], [1]]
        steps.append(("Slice", columns))
    steps += [("Squeeze", [squeezed])] if squeezed else []
    steps += [("Unsqueeze", [unsqueezed])] if unsqueezed else []
    for k, (op, vectors) in enumerate(steps):
        arguments = [vector(c, v, f"{c.name}.{op.lower()}_{i}") for i, v in enumerate(vectors)]
        last = k == len(steps) - 1
        result = g.node(op, [value, *arguments], c.name if last else f"{c.name}.{op.lower()}")
        value = result if last else c.quantize_inner(result, "after")
    return value


WRITERS: dict[str, Write] = {
    "slice": _slice, "index": _index, "gather": _gather, "take": _take, "where": _where, "embedding": _embedding,
    "index_put": _index_put,
    "one_hot": _one_hot, "tril": _triangle(0), "triu": _triangle(1),
}  # fmt: skip
"""The writers of this family, by kind."""
