"""Write norms as TFLite's operators in float32: means, squared differences and a reciprocal root."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.formulas import Formula
from qfunc.lowering.nhwc.tensor import NhwcTensor


def group_norm(step: OpContext) -> None:
    """Write GroupNormalization: (x - mean) * rsqrt(var + epsilon) in each group of channels, then scale and bias."""
    _grouped(step, int(step.attribute("num_groups", 1)))


def instance_norm(step: OpContext) -> None:
    """Write InstanceNormalization, the group norm whose groups are single channels."""
    _grouped(step, step.shape[1])


def _grouped(step: OpContext, groups: int) -> None:
    f, x = Formula(step), step.writer.plain(step.input())
    rows = (x.shape[0], groups, math.prod(x.shape[1:]) // groups)
    value = step.reshaped(x, rows, f.tensor("rows", rows))
    value = normalized(f, value, [2], float(step.attribute("epsilon", 1e-5)))
    value = step.reshaped(value, x.shape, f.tensor("groups", x.shape))
    scale, bias = (_of_channels(step, f, step.array(i)[0], len(x.shape)) for i in (1, 2))
    f("ADD", f("MUL", value, scale), bias, into=step.result(x.shape))


def _of_channels(step: OpContext, f: Formula, value: Any, rank: int) -> NhwcTensor:
    f.count += 1
    constant = np.asarray(value, np.float32).reshape((1, -1, *[1] * (rank - 2)))
    return step.file.tensor(f"{step.name}.affine_{f.count}", constant.shape, value=constant)


def normalized(f: Formula, x: NhwcTensor, axes: Sequence[int], epsilon: float) -> NhwcTensor:
    """Return (x - mean) * rsqrt(mean((x - mean)^2) + epsilon) over some axes of the file."""
    centred = f("SUB", x, mean(f, x, axes))
    variance = mean(f, f("MUL", centred, centred), axes)
    return f("MUL", centred, f("RSQRT", f("ADD", variance, epsilon)))


def mean(f: Formula, x: NhwcTensor, axes: Sequence[int], op: str = "MEAN") -> NhwcTensor:
    """Return a reduction over some axes of the file, which stay with the length 1."""
    shape = [1 if i in axes else n for i, n in enumerate(x.shape)]
    output = f.tensor(op, shape, last=x.last)
    constant = f.step.file.integers(list(axes), f"{f.step.name}.axes_{f.count}")
    f.step.file.operator(op, [x, constant], [output], "ReducerOptions", keepDims=True)
    return output


def response_norm(step: OpContext) -> None:
    """Write x * (bias + alpha / size * sum of squares of `size` channels) ^ -beta."""
    f, size = Formula(step), int(step.attribute("size"))
    x = step.writer.plain(step.input())
    square, around = f("MUL", x, x), ((size - 1) // 2, size // 2)
    shape = [n + sum(around) * (i == 1) for i, n in enumerate(x.shape)]
    pads = step.file.integers([[0, 0], list(around), *[[0, 0]] * (len(shape) - 2)], f"{step.name}.pads")
    padded = f.tensor("padded", shape)
    step.file.operator("PAD", [square, pads], [padded], "PadOptions")
    total = _channels(step, f, padded, 0, x.shape)
    for i in range(1, size):
        total = f("ADD", total, _channels(step, f, padded, i, x.shape))
    alpha, beta, bias = (float(step.attribute(n, d)) for n, d in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    level = f("ADD", f("MUL", total, alpha / size), bias)
    f("MUL", x, f("EXP", f("MUL", f("LOG", level), -beta)), into=step.result(x.shape))


def _channels(step: OpContext, f: Formula, x: NhwcTensor, first: int, shape: Sequence[int]) -> NhwcTensor:
    # The channels from `first` on, as many as in `shape`.
    output, rank = f.tensor("channels", shape), len(shape)
    begin, stop, ones = ([v if i == 1 else o for i in range(rank)] for v, o in ((first, 0), (first + shape[1], 0), (1, 1)))
    inputs = [step.file.integers(v, f"{output.name}.{n}") for v, n in ((begin, "begin"), (stop, "end"), (ones, "strides"))]
    rest = (1 << rank) - 1 - 2
    step.file.operator("STRIDED_SLICE", [x, *inputs], [output], "StridedSliceOptions", beginMask=rest, endMask=rest)
    return output
