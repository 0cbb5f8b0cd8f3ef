"""Write pools and reductions as layers of ncnn, in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import evolve

from qfunc.lowering.windows import Window, window, with_ceil_mode
from qfunc.targets.ncnn.axes import MOST, batch_axis
from qfunc.targets.ncnn.builder import Blob
from qfunc.targets.ncnn.elementwise import along, axis_of
from qfunc.targets.ncnn.indexing import cut
from qfunc.targets.ncnn.linear import image, reshaped_like, signal
from qfunc.targets.ncnn.writer import OpContext


def max_pool(step: OpContext) -> None:
    """Write Pooling by the maximum; over a dilated window, the maxima of shifted images."""
    w, x = _window(step)
    if w.dilation != (1, 1):
        return _dilated(step, x, w)
    return _pooled(step, x, w, {0: 0})


def _dilated(step: OpContext, x: Blob, w: Window) -> None:
    lowest = float(np.finfo(np.float32).min)
    for axis in (0, 1):
        reach = w.dilation[axis] * (w.kernel[axis] - 1)
        if not (reach or w.before[axis] or w.after[axis]):
            continue
        pads = {0: (0, 1), 1: (2, 3)}[axis]
        length = x.shape[axis + 1] + w.before[axis] + w.after[axis]
        shape = [length if i == axis + 1 else n for i, n in enumerate(x.shape)]
        ends = {f"p{n}": p for n, p in zip(pads, (w.before[axis], w.after[axis]), strict=True)}
        padded = step.layer("Padding", [x], f"padded_{axis}", shape, **ends, p4=0, p5=lowest)
        starts = range(0, reach + 1, w.dilation[axis])
        parts = [cut(step, padded, {axis + 1: (a, a + length - reach)}, f"{step.output}.{axis}.{a}") for a in starts]
        x = parts[0]
        for i, part in enumerate(parts[1:]):
            x = step.layer("BinaryOp", [x, part], f"most_{axis}_{i}", part.shape, p0=4)
    return _pooled(step, x, Window((1, 1), w.stride, (1, 1), (0, 0), (0, 0)), {0: 0})


def average_pool(step: OpContext) -> None:
    """Write Pooling by the mean of the entries inside the image, or of the whole window.

    If padding counts but not what `ceil_mode` adds, a Padding is before the pool, whose entries are inside.
    """
    w, x = _window(step)
    pads = step.attribute("pads") or ()
    counts_all = bool(step.attribute("count_include_pad", 0)) and any(pads)
    padding_after = [0, 0, *(int(p) for p in pads[len(pads) // 2 :])][-2:]
    more = [a - b for a, b in zip(w.after, padding_after, strict=True)]
    if counts_all and any(more):
        (above, left), (below, right) = w.before, padding_after
        shape = (x.shape[0], x.shape[1] + above + below, x.shape[2] + left + right)
        x = step.layer("Padding", [x], "padded", shape, p0=above, p1=below, p2=left, p3=right, p4=0, p5=0.0)
        w, counts_all = evolve(w, before=(0, 0), after=(more[0], more[1])), False
    _pooled(step, x, w, {0: 1, 6: int(counts_all)})


def _window(step: OpContext) -> tuple[Window, Blob]:
    kernel = step.attribute("kernel_shape")
    w, x = window(step, kernel), image(step, step.input(), len(kernel))
    return with_ceil_mode(step, w, x.shape[1:]), x


def _pooled(step: OpContext, x: Blob, w: Window, how: dict[int, Any]) -> None:
    rank = len(step.attribute("kernel_shape"))
    parameters = {
        **how, 1: w.kernel[1], 11: w.kernel[0], 2: w.stride[1], 12: w.stride[0],
        3: w.before[1], 13: w.before[0], 14: w.after[1], 15: w.after[0], 5: 1,
    }  # fmt: skip
    shape = (x.shape[0], *signal(step.shape[1:], rank))
    blob = step.file.layer("Pooling", [x], step.output, shape, dict(sorted(parameters.items())))
    step.keep(reshaped_like(step, blob))


def global_average_pool(step: OpContext) -> None:
    """Write global Pooling by the mean."""
    _global(step, 1)


def global_max_pool(step: OpContext) -> None:
    """Write global Pooling by the maximum."""
    _global(step, 0)


def _global(step: OpContext, how: int) -> None:
    x = step.input()
    x = image(step, x, len(x.shape) - 1)
    made = step.layer("Pooling", [x], "", x.shape[:1], p0=how, p4=1)
    step.keep(reshaped_like(step, made))


def reduced(op: int) -> Any:
    """Return the writer of the Reduction with that number; a mean over height and width is a pool."""

    def write(step: OpContext) -> None:
        x, places, keep = _reduction(step)
        if op == 3 and len(x.shape) == 3 and places == [1, 2]:
            return global_average_pool(step)
        shape = [1 if i in places else n for i, n in enumerate(x.shape) if keep or i not in places] or [1]
        blob = step.layer("Reduction", [x], "", shape, p0=op, p1=0, p2=1.0, p3=places, p4=keep, p5=1)
        return step.keep(reshaped_like(step, blob))

    return write


def _reduction(step: OpContext) -> tuple[Blob, list[int], int]:
    # The input, the axes and 1 if they are kept.
    axes = step.constant(1) if len(step.node.input) > 1 else step.attribute("axes")
    if axes is None:
        axes = [i for i in range(len(step.sizes())) if not _is_batch(step, i)]
    else:
        axes = _of_an_example(step, [int(a) for a in axes])
    keep, example = int(step.attribute("keepdims", 1)), step.example()
    if len(example) <= MOST:
        return step.input(), sorted(axis_of(step, a) for a in axes), keep
    if len(axes) > 1:
        raise step.refuse("a reduction of two of more than four axes", "one axis", "Reduce one axis after the other.")
    x, place = along(step, axes[0])
    return x, [place], keep


def _is_batch(step: OpContext, axis: int) -> bool:
    return axis in (batch_axis(step.source, step.node.input[0], step.node.name), step.source.varies(step.node.input[0]))


def _of_an_example(step: OpContext, axes: list[int]) -> list[int]:
    # A program of one example has a first axis of one entry, which a reduction of other axes, too, need not name.
    name, rank = step.node.input[0], len(step.sizes())
    gone = batch_axis(step.source, name, step.node.name) if step.source.varies(name) is None else None
    return [a for a in axes if a % rank != gone] or axes


def log_sum_exp(step: OpContext) -> None:
    """Write m + log(sum(exp(x - m))) with the maximum m, because ncnn's Reduction overflows."""
    x, places, _ = _reduction(step)
    most, total = _log_of_sum(step, x, places)
    made = step.layer("BinaryOp", [most, total], "", total.shape, p0=0)
    step.keep(reshaped_like(step, made))


def log_softmax(step: OpContext) -> None:
    """Write x - m - log(sum(exp(x - m))) with the maximum m."""
    x, place = along(step, int(step.attribute("axis", -1)))
    most, total = _log_of_sum(step, x, [place])
    shifted = step.layer("BinaryOp", [x, most], "above", x.shape, p0=1)
    step.keep(reshaped_like(step, step.layer("BinaryOp", [shifted, total], "", x.shape, p0=1)))


def _log_of_sum(step: OpContext, x: Blob, places: list[int]) -> tuple[Blob, Blob]:
    shape = [1 if i in places else n for i, n in enumerate(x.shape)]
    most = step.layer("Reduction", [x], "most", shape, p0=4, p1=0, p2=1.0, p3=places, p4=1, p5=1)
    shifted = step.layer("BinaryOp", [x, most], "shifted", x.shape, p0=1)
    powers = step.layer("UnaryOp", [shifted], "powers", x.shape, p0=7)
    total = step.layer("Reduction", [powers], "sum", shape, p0=0, p1=0, p2=1.0, p3=places, p4=1, p5=1)
    return most, step.layer("UnaryOp", [total], "log", shape, p0=8)


def position(sign: int) -> Any:
    """Return the writer of the first position of the maximum, sign=1, or minimum, sign=-1.

    x - max(x) is 0 at the maxima. Of them, the one with the largest n - i has the first position i, in float32.
    """

    def write(step: OpContext) -> None:
        if int(step.attribute("select_last_index", 0)):
            raise step.refuse("the last position", "the first", "Take the first position.")
        x, place = along(step, int(step.attribute("axis", 0)))
        length, shape = x.shape[place], [1 if i == place else n for i, n in enumerate(x.shape)]
        order = [-1 if i == place else 1 for i in range(len(x.shape))]
        most = step.layer("Reduction", [x], "most", shape, p0=4 if sign > 0 else 5, p1=0, p2=1.0, p3=[place], p4=1, p5=1)
        pair = [x, most] if sign > 0 else [most, x]
        below = step.layer("BinaryOp", pair, "below", x.shape, p0=1)
        less = step.layer("Threshold", [step.layer("UnaryOp", [below], "above", x.shape, p0=1)], "less", x.shape, p0=0.0)
        equal = step.layer("BinaryOp", [less], "equal", x.shape, p0=7, p1=1, p2=1.0)
        numbers = np.arange(length, 0, -1, dtype=np.float32).reshape(order)
        marked = step.layer("BinaryOp", [equal, step.file.constant(f"{step.output}.numbers", numbers)], "marked", x.shape, p0=2)
        first = step.layer("Reduction", [marked], "first", shape, p0=4, p1=0, p2=1.0, p3=[place], p4=1, p5=1)
        made = step.layer("BinaryOp", [first], "", shape, p0=7, p1=1, p2=float(length))
        step.keep(reshaped_like(step, made))

    return write


def cumulative_sum(step: OpContext) -> None:
    """Write CumulativeSum."""
    if int(step.attribute("exclusive", 0)) or int(step.attribute("reverse", 0)):
        raise step.refuse("an exclusive or reverse sum", "a sum from the first entry", "Flip the tensor.")
    x, place = along(step, int(step.constant(1)))
    step.keep(reshaped_like(step, step.layer("CumulativeSum", [x], "", x.shape, p0=place)))
