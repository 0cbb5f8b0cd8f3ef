"""Write slices, splits, positions, embeddings and choices as layers of ncnn.

It has no booleans: a mask is 0 and 1 in float32.
"""

from __future__ import annotations

import math

import numpy as np
import onnx

from qfunc.lowering.qdq.qparams import Array
from qfunc.lowering.qdq.reader import REAL, copies
from qfunc.targets.ncnn.axes import blob_shape
from qfunc.targets.ncnn.builder import Blob, tagged
from qfunc.targets.ncnn.elementwise import along, axis_of, binary, operand, operand_shapes
from qfunc.targets.ncnn.writer import OpContext

_MOST_RUNS = 256
_RENAMES = ("Cast", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze")


def sliced(step: OpContext) -> None:
    """Write Crop; steps are maxima over windows of one entry, and negative steps follow a Flip.

    Raises:
        DeployError: a slice along the batch, without entries, or along two of more than four axes.
    """
    starts, ends, axes, steps = (step.constant(i) for i in (1, 2, 3, 4))
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else [int(s) for s in steps]
    full, cuts, strides, last = step.sizes(), dict[int, tuple[int, int]](), dict[int, int](), 0
    for begin, end, axis, stride in zip(starts, ends, axes, steps, strict=True):
        length = full[int(axis)]
        first, stop, _ = slice(int(begin), int(end), stride).indices(length)
        if not range(first, stop, stride):
            raise step.refuse("a slice without entries", "a tensor with entries", "Leave it out.")
        if stride == 1 and (first, stop) == (0, length) and _is_batch(step, int(axis)):
            continue
        place, last = axis_of(step, int(axis)), int(axis)
        cuts[place] = (first, stop) if stride > 0 else (stop + 1, first + 1)
        strides |= {place: stride} if stride != 1 else {}
    if not cuts:
        return step.keep(step.input())
    x = step.input()
    if x.shape != step.example():
        if len(cuts) > 1:
            raise step.refuse("slices along two of more than four axes", "one axis", "Slice one axis after the other.")
        x, place = along(step, last)
        cuts, strides = {place: cuts.popitem()[1]}, {place: strides.popitem()[1]} if strides else {}
    whole = bool(strides) or x.shape != step.example()
    x = cut(step, x, cuts, f"{step.output}.whole" if whole else step.output)
    if len(x.shape) == 3 and len(step.shape) == 3 and strides and 0 not in strides and min(strides.values()) > 0:
        return step.write_result("Pooling", x, p0=0, p1=1, p2=strides.get(2, 1), p5=1, p11=1, p12=strides.get(1, 1))
    for place, stride in strides.items():
        x = _every(step, x, place, stride)
    return step.keep(step.reshaped(x, step.shape, "flat"))


def _is_batch(step: OpContext, axis: int) -> bool:
    # The batch, or an axis of one entry, which the blob lacks.
    return step.sizes()[axis] == 1 or axis % len(step.sizes()) == step.source.varies(step.node.input[0])


def _every(step: OpContext, x: Blob, place: int, stride: int) -> Blob:
    # Every entry at a multiple of the stride along an axis; from the end for a negative one.
    before, length, after = math.prod(x.shape[:place]), x.shape[place], math.prod(x.shape[place + 1 :])
    rows = step.reshaped(x, (before, length, after), f"rows_{place}")
    if stride < 0:
        rows = step.layer("Flip", [rows], f"flipped_{place}", rows.shape, p0=[1])
    if abs(stride) > 1:
        length = -(-length // abs(stride))
        window = {"p0": 0, "p1": 1, "p2": 1, "p5": 1, "p11": 1, "p12": abs(stride)}
        rows = step.layer("Pooling", [rows], f"every_{place}", (before, length, after), **window)
    return step.reshaped(rows, (*x.shape[:place], length, *x.shape[place + 1 :]), f"sliced_{place}")


def split(step: OpContext) -> None:
    """Write a Crop for each part."""
    axis, start = int(step.attribute("axis", 0)), 0
    x, place = along(step, axis)
    for output in map(str, step.node.output):
        length = step.source.shape(output, step.node.name)[axis]
        flat = x.shape != step.example()
        part = cut(step, x, {place: (start, start + length)}, f"{output}.part" if flat else output)
        step.keep(step.reshaped(part, blob_shape(step.source, output, step.node.name), output) if flat else part, output)
        start += length


def cut(step: OpContext, x: Blob, cuts: dict[int, tuple[int, int]], name: str) -> Blob:
    """Return the entries of a blob from a start to an end, by axis."""
    shape = [cuts[i][1] - cuts[i][0] if i in cuts else n for i, n in enumerate(x.shape)]
    axes = sorted(cuts)
    parameters = {9: [cuts[a][0] for a in axes], 10: [cuts[a][1] for a in axes], 11: axes}
    return step.file.layer("Crop", [x], name, shape, parameters)


def gather(step: OpContext) -> None:
    """Write an embedding, or the entries at constant positions along an axis: a Crop for each run of them, joined.

    Raises:
        DeployError: positions that are computed, or too many runs.
    """
    held, axis = step.constant_input(1), int(step.attribute("axis", 0))
    if held is None:
        return _embedding(step)
    x, place = along(step, axis)
    runs = _runs(np.asarray(held.value).astype(int).ravel() % x.shape[place])
    if len(runs) > _MOST_RUNS:
        raise step.refuse(f"{len(runs)} runs of positions", f"at most {_MOST_RUNS}", "Gather ranges of positions.")
    parts = [cut(step, x, {place: run}, f"{step.output}.part_{i}") for i, run in enumerate(runs)]
    made = [sum(b - a for a, b in runs) if i == place else n for i, n in enumerate(x.shape)]
    joined = parts[0] if len(parts) == 1 else step.layer("Concat", parts, "joined", made, p0=place)
    return step.keep(step.reshaped(joined, step.shape, ""))


def _runs(positions: Array) -> list[tuple[int, int]]:
    # Ranges of consecutive positions.
    found: list[tuple[int, int]] = []
    for p in map(int, positions):
        if found and found[-1][1] == p:
            found[-1] = found[-1][0], p + 1
        else:
            found.append((p, p + 1))
    return found


def _embedding(step: OpContext) -> None:
    table, name = step.constant_input(0), step.node.input[1]
    while (node := step.source.producers.get(name)) is not None and node.op_type in _RENAMES:
        name = node.input[0]
    given = step.writer.indices.get(name)
    if table is None or given is None or table.value.ndim != 2 or int(step.attribute("axis", 0)):
        do = "Index by constants, or embed an input of indices."
        raise step.refuse("positions that are computed", "constants, or rows of a constant table", do)
    rows, columns = table.value.shape
    count = math.prod(given.shape)
    words = step.reshaped(given, (count,), "words")
    values = {0: columns, 1: rows, 2: 0, 3: rows * columns}
    largest = float(np.abs(table.real).max())
    made = step.file.layer(
        "Embed", [words], f"{step.output}.rows", (count, columns), values, weights=[tagged(table.real)], largest=largest
    )
    step.keep(step.reshaped(made, step.shape, ""))


def where(step: OpContext) -> None:
    """Write m a + (1 - m) b for a mask m of 0 and 1, which is a constant or compares real values.

    Raises:
        DeployError: another condition, or infinite numbers other than those of a mask before a softmax.
    """
    step = _of_narrow_mask(step)
    values = [step.constant_input(i) for i in (1, 2)]
    infinite = any(v is not None and not np.isfinite(v.real).all() for v in values)
    if infinite and not _reaches_softmax_only(step):
        raise step.refuse("a choice of infinite numbers", "finite ones: infinity times 0 is NaN", "Use -1e9.")
    if step.constant_input(0) is None:
        _mask(step, str(step.node.input[0]))
    shapes = operand_shapes(step, (0, 1, 2))
    chosen, *pair = (operand(step, i, shape) for i, shape in enumerate(shapes))
    others = step.layer("BinaryOp", [chosen], "others", chosen.shape, p0=7, p1=1, p2=1.0)
    parts = []
    for name, mask, value in zip(("chosen", "rest"), (chosen, others), pair, strict=True):
        shape = tuple(map(max, mask.shape, value.shape))
        parts.append(step.layer("BinaryOp", [mask, value], name, shape, p0=2))
    made = step.layer("BinaryOp", parts, "", tuple(map(max, *(p.shape for p in parts))), p0=0)
    step.keep(step.reshaped(made, step.shape, "flat"))


def _of_narrow_mask(step: OpContext) -> OpContext:
    # The choice by the mask before it was expanded to all scores: a choice expands it.
    node, name = onnx.NodeProto(), str(step.node.input[0])
    node.CopyFrom(step.node)
    while (maker := step.source.producers.get(name)) is not None and maker.op_type == "Expand":
        name = maker.input[0]
    node.input[0] = name
    return OpContext(step.writer, node)


def _reaches_softmax_only(step: OpContext) -> bool:
    names = [step.output]
    for name in names:
        readers = step.source.readers.get(name, [])
        if name in step.source.outputs or any(r.op_type != "Softmax" and not copies(r) for r in readers):
            return False
        names += [r.output[0] for r in readers if copies(r)]
    return True


def _mask(step: OpContext, name: str) -> None:
    # Write a tensor of booleans as 0 and 1: Threshold is 1 where the difference of the operands is above 0.
    node = step.source.producers.get(name)
    if name in step.writer.blobs or name in step.writer.constants:
        return
    if node is None or node.op_type not in (*_DIFFERENCES, *_LOGIC, *_RENAMES):
        found = name if node is None else node.op_type
        raise step.refuse(f"a choice by {found}", "comparisons of real values", "Compare by < or >.")
    inner = OpContext(step.writer, node)
    if node.op_type == "Cast" and step.source.kind(node.input[0]) != onnx.TensorProto.BOOL:
        return _not_zero(inner)
    if node.op_type in _RENAMES:
        _mask(step, str(node.input[0]))
        return inner.keep(inner.reshaped(inner.input(), inner.shape, ""))
    if node.op_type in _LOGIC:
        for operand in node.input:
            _mask(step, operand)
        if node.op_type == "Not":
            mask = inner.input()
            return inner.keep(inner.layer("BinaryOp", [mask], "", mask.shape, p0=7, p1=1, p2=1.0))
        return binary(*_LOGIC[node.op_type])(inner)
    binary(*_DIFFERENCES[node.op_type])(inner)
    difference = inner.writer.blobs[inner.output]
    over = inner.layer("Threshold", [difference], "over", difference.shape, p0=0.0)
    if node.op_type.endswith("OrEqual"):
        over = inner.layer("BinaryOp", [over], "not_over", over.shape, p0=7, p1=1, p2=1.0)
    return inner.keep(over)


def _not_zero(step: OpContext) -> None:
    # x != 0 of real numbers: |x| > 0.
    if step.source.kind(step.node.input[0]) != REAL:
        do = "Give the model its mask in float32."
        raise step.refuse("booleans of integers", "booleans of real values", do)
    x = step.input()
    size = step.layer("UnaryOp", [x], "size", x.shape, p0=0)
    step.keep(step.layer("Threshold", [size], "", size.shape, p0=0.0))


_DIFFERENCES = {"Greater": (1, 7), "LessOrEqual": (1, 7), "Less": (7, 1), "GreaterOrEqual": (7, 1)}
_LOGIC = {"Not": (0, 0), "And": (2, 2), "Or": (4, 4)}
