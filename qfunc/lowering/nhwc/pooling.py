"""Write pools and reductions as TFLite's operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from attrs import evolve

from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.formulas import Formula
from qfunc.lowering.nhwc.images import Padding, image, out_shape, output_image, padded, same, to_signal
from qfunc.lowering.nhwc.norms import mean
from qfunc.lowering.nhwc.shape import axis_at, batch_axis, cut
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.windows import Window, window, with_ceil_mode


def max_pool(step: OpContext) -> None:
    """Write MAX_POOL_2D, after maxima of slices along the axes with a dilation, which TensorFlow Lite's pools do not have."""
    step.on_codes(0, fuses=True)
    x = image(step, step.input())
    w = with_ceil_mode(step, window(step, step.attribute("kernel_shape")), x.shape[1:3])
    x, padding = padded(step, x, w, lowest=True)
    for i in () if step.file.any_padding else (0, 1):
        if w.dilation[i] > 1:
            x, w = _largest_of_slices(step, x, w, i)
    _pool(step, "MAX_POOL_2D", x, w, padding)


def _largest_of_slices(step: OpContext, x: NhwcTensor, w: Window, i: int) -> tuple[NhwcTensor, Window]:
    # The maximum of one slice for each entry of the window along an axis, and the window that is left.
    (k, d, s), axis = (w.kernel[i], w.dilation[i], w.stride[i]), 1 + i
    count, name = (x.shape[axis] - d * (k - 1) - 1) // s + 1, f"{('rows', 'columns')[i]}"
    parts = [cut(step, x, {axis: (j * d, j * d + (count - 1) * s + 1, s)}, f"{name}.{j}") for j in range(k)]
    largest = parts[0]
    for j, part in enumerate(parts[1:], 1):
        output = step.inner(f"{name}.largest_{j}", part.shape, x, last=True)
        step.file.operator("MAXIMUM", [largest, part], [output], "MaximumMinimumOptions")
        largest = output
    kernel, stride, dilation = ((1, v[1]) if i == 0 else (v[0], 1) for v in (w.kernel, w.stride, w.dilation))
    return largest, evolve(w, kernel=kernel, stride=stride, dilation=dilation)


def average_pool(step: OpContext) -> None:
    """Write AVERAGE_POOL_2D, which divides by the number of entries inside the image.

    Raises:
        DeployError: windows beyond a counted padding, for XNNPACK, whose sums have an order that depends on the window.
    """
    step.on_codes(0, fuses=True)
    x = image(step, step.input())
    given = window(step, step.attribute("kernel_shape"))
    w = with_ceil_mode(step, given, x.shape[1:3])
    counted = bool(step.attribute("count_include_pad", 0)) and any((*given.before, *given.after))
    if counted and w == given:
        return _pool(step, "AVERAGE_POOL_2D", _zero_padded(step, x, w), w, "VALID")
    if counted and step.file.any_padding:
        found = f"windows of {w.kernel} entries beyond a padding by {given.before} that is counted"
        raise step.refuse(found, "windows inside of the padding", "Use count_include_pad=False or ceil_mode=False.")
    if counted or not (step.file.any_padding or not any((*w.before, *w.after)) or same(w, x.shape[1:3])):
        return _average_of_parts(step, x, w, given if counted else None)
    x, padding = padded(step, x, w)
    _pool(step, "AVERAGE_POOL_2D", x, w, padding)


def _average_of_parts(step: OpContext, x: NhwcTensor, w: Window, counted: Window | None) -> None:
    # Average the windows of one size by one operator each, those at the borders apart, and join the results.
    if counted is not None:
        x, w = _zero_padded(step, x, counted), evolve(w, before=(0, 0), after=(0, 0))
    output, result = output_image(step, out_shape(step, x.shape[-1]))
    rows, columns = (_runs(x.shape[1 + i], w, i, output.shape[1 + i]) for i in (0, 1))
    bands = [[_part(step, x, (y, x_), w, f"rows{j}.columns{i}") for i, x_ in enumerate(columns)] for j, y in enumerate(rows)]
    joined = [_joined(step, band, 2, f"rows{j}") for j, band in enumerate(bands)]
    _joined(step, joined, 1, "", output)
    to_signal(step, output, result)


def _zero_padded(step: OpContext, x: NhwcTensor, w: Window) -> NhwcTensor:
    pairs = [[0, 0], *([b, a] for b, a in zip(w.before, w.after, strict=True)), [0, 0]]
    output = step.inner("padded", [n + sum(p) for n, p in zip(x.shape, pairs, strict=True)], x, last=True)
    step.file.operator("PAD", [x, step.file.integers(pairs, f"{step.name}.pads")], [output], "PadOptions")
    return output


def _runs(size: int, w: Window, i: int, count: int) -> list[tuple[int, int, int]]:
    # (first entry, length, number) of windows along an axis with one length, each a stride after the one before.
    runs: list[tuple[int, int, int]] = []
    for k in range(count):
        first = k * w.stride[i] - w.before[i]
        start, stop = max(first, 0), min(first + w.kernel[i], size)
        if runs and runs[-1][1] == stop - start and runs[-1][0] + runs[-1][2] * w.stride[i] == start:
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        else:
            runs.append((start, stop - start, 1))
    return runs


def _part(step: OpContext, x: NhwcTensor, runs: Sequence[tuple[int, int, int]], w: Window, name: str) -> NhwcTensor:
    cuts, kernel, stride = {}, [1, 1], [1, 1]
    for i, (start, length, count) in enumerate(runs):
        stop = start + (count - 1) * w.stride[i] + length
        if length == 1:  # every entry is an average
            cuts[1 + i] = (start, stop, w.stride[i])
        else:
            cuts[1 + i], kernel[i], stride[i] = (start, stop, 1), length, w.stride[i]
    part = cut(step, x, cuts, f"{name}.image")
    output = step.inner(name, (x.shape[0], runs[0][2], runs[1][2], x.shape[-1]), x, last=True)
    dilation = {"dilationH": 1, "dilationW": 1} if step.file.any_padding else {}
    step.file.operator(
        "AVERAGE_POOL_2D", [part], [output], "Pool2DOptions", padding="VALID", filterHeight=kernel[0], filterWidth=kernel[1],
        strideH=stride[0], strideW=stride[1], fusedActivationFunction=step.activation, **dilation,
    )  # fmt: skip
    return output


def _joined(step: OpContext, parts: list[NhwcTensor], axis: int, name: str, into: NhwcTensor | None = None) -> NhwcTensor:
    if len(parts) == 1 and into is None:
        return parts[0]
    shape = [sum(p.shape[i] for p in parts) if i == axis else n for i, n in enumerate(parts[0].shape)]
    output = into or step.inner(name, shape, parts[0], last=True)
    step.file.operator("CONCATENATION", parts, [output], "ConcatenationOptions", axis=axis, fusedActivationFunction="NONE")
    return output


def _pool(step: OpContext, op: str, x: NhwcTensor, w: Window, padding: Padding) -> None:
    output, result = output_image(step, out_shape(step, x.shape[-1]))
    dilation = {"dilationH": w.dilation[0], "dilationW": w.dilation[1]} if step.file.any_padding else {}
    step.file.operator(
        op, [x], [output], "Pool2DOptions", padding=padding,
        filterHeight=w.kernel[0], filterWidth=w.kernel[1], strideH=w.stride[0], strideW=w.stride[1],
        fusedActivationFunction=step.activation, **dilation,
    )  # fmt: skip
    to_signal(step, output, result)


def global_average_pool(step: OpContext) -> None:
    """Write MEAN over all axes after the channels."""
    _reduced(step, "MEAN", list(range(2, len(step.shape))), True)


def global_max_pool(step: OpContext) -> None:
    """Write REDUCE_MAX over all axes after the channels."""
    _reduced(step, "REDUCE_MAX", list(range(2, len(step.shape))), True)


def reduced(op: str) -> Callable[[OpContext], None]:
    """Return the writer of a reduction over some axes: MEAN, SUM, REDUCE_MAX, REDUCE_MIN or REDUCE_PROD."""
    return lambda step: _reduced(step, op, _axes(step), bool(step.attribute("keepdims", 1)))


def _axes(step: OpContext) -> list[int]:
    axes = step.constant(1) if len(step.node.input) > 1 else step.attribute("axes")
    rank = len(step.writer.tensor(step.node.input[0]).shape)
    return list(range(rank)) if axes is None else [int(a) % rank for a in axes]


def position(op: str) -> Callable[[OpContext], None]:
    """Return the writer of ARG_MAX or ARG_MIN of real values, an output of int64: the first of equal entries."""

    def write(step: OpContext) -> None:
        x, keep = step.writer.plain(step.input()), bool(step.attribute("keepdims", 1))
        axis = int(step.attribute("axis", 0)) % len(x.shape)
        shape = [n for i, n in enumerate(x.shape) if i != axis]
        output = step.keep(step.file.tensor(step.name, step.shape, dtype=np.int64))
        found = step.file.tensor(f"{step.name}.flat", shape, dtype=np.int64) if keep else output
        axis_tensor = step.file.integers(axis, f"{step.name}.axis")
        step.file.operator(op, [x, axis_tensor], [found], f"Arg{op[4:].capitalize()}Options", outputType="INT64")
        if keep:
            step.reshaped(found, step.shape, output, batch_axis(step, output))

    return write


Term = Callable[[Formula, NhwcTensor], NhwcTensor]


def reduced_terms(before: Term, after: Callable[[Formula, NhwcTensor, NhwcTensor], NhwcTensor]) -> Callable[[OpContext], None]:
    """Return the writer of after(sum of before(x)) over some axes, in float32; `after` writes into a given tensor."""

    def write(step: OpContext) -> None:
        f, axes, x = Formula(step), _axes(step), step.writer.plain(step.input())
        total = mean(f, before(f, x), axes, "SUM")
        _finish(step, total, lambda into: after(f, total, into))

    return write


def log_sum_exp(step: OpContext) -> None:
    """Write m + log(sum of exp(x - m)), where m is the maximum over the axes."""
    f, axes, x = Formula(step), _axes(step), step.writer.plain(step.input())
    top = mean(f, x, axes, "REDUCE_MAX")
    total = mean(f, f("EXP", f("SUB", x, top)), axes, "SUM")
    _finish(step, total, lambda into: f("ADD", f("LOG", total), top, into=into))


def _finish(step: OpContext, total: NhwcTensor, write: Callable[[NhwcTensor], NhwcTensor]) -> None:
    # Write the result of a reduction, whose axes stay with the length 1 if the op keeps them.
    output = step.result(step.shape)
    if output.shape == total.shape:
        write(output)
    else:
        step.reshaped(write(step.inner("kept", total.shape)), output.shape, output, batch_axis(step, output))


def _reduced(step: OpContext, op: str, axes: list[int], keep: bool) -> None:
    if op == "MEAN":
        step.on_codes(0)
    x = step.input()
    images = set(range(2, len(x.shape))) <= set(axes)  # then the remaining axes have the same order in both layouts
    if not keep and not images:
        x = step.writer.plain(x)
    at = sorted(axis_at(a, x) for a in axes)
    shape = [1 if i in at else n for i, n in enumerate(x.shape) if keep or i not in at]
    axes_tensor = step.file.integers(at, f"{step.name}.axes")
    output = step.result(shape, last=x.last and keep)
    # With keepDims the optimised kernels use another MEAN, which rounds z_x s_x / s_y separately.
    inner = step.inner("mean", [n for i, n in enumerate(x.shape) if i not in at]) if keep else output
    step.file.operator(op, [x, axes_tensor], [inner], "ReducerOptions", keepDims=False)
    if keep:
        step.reshaped(inner, shape, output, batch_axis(step, output))
