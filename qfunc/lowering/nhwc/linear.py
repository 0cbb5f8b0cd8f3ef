"""Write convolutions, transposed ones, linear layers and matrix products as TFLite's operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from attrs import evolve

from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.images import Padding, image, out_shape, output_image, padded, to_signal
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.qdq.qparams import Array, QParams, float_numbers
from qfunc.lowering.windows import Window, window


def on_weighted_codes(step: OpContext, axis: int) -> bool:
    """Return True if the op can compute on codes: weights without zero points, their scales along `axis`, a bias of codes."""
    constants = [step.writer.tensor(n) for n in step.node.input[1:]]
    weight = constants[0].qparams
    if weight is None or constants[0].value is None or any(weight.zero_point) or any(h.qparams is None for h in constants[1:]):
        return False
    along = weight.axis % constants[0].value.ndim == axis or len(weight.scale) == 1
    return along and step.on_codes(0, fuses=True)


def bias_of(step: OpContext, channels: int, x: NhwcTensor, weight: QParams | None) -> NhwcTensor:
    """Return the bias: the third input, or zeros."""
    name = f"{step.name}.bias"
    if len(step.node.input) > 2:
        value, qparams = step.array(2)
        # XNNPACK has no convolution whose bias has a scale for each channel and whose weight has one scale.
        if qparams is not None and weight is not None and len(weight.scale) == 1 and len(set(qparams.scale)) == 1:
            qparams = QParams(qparams.scale[:1], qparams.zero_point[:1])
        return step.file.tensor(step.node.input[2].removesuffix(".real"), value.shape, qparams, value=value)
    if not step.codes or weight is None or x.qparams is None:
        return step.file.tensor(name, (channels,), value=np.zeros(channels, np.float32))
    product = tuple(float(np.float32(s) * np.float32(x.qparams.scale[0])) for s in weight.scale)
    qparams = QParams(product, (0,) * len(product))
    return step.file.tensor(name, (channels,), qparams, value=np.zeros(channels, step.file.bias_type))


def stored(step: OpContext, value: Array, qparams: QParams | None, axis: int) -> NhwcTensor:
    """Store a weight in the file, and return it; its output channels are along `axis`."""
    moved = None if qparams is None else evolve(qparams, axis=axis)
    name = step.node.input[1].removesuffix(".real")
    return step.file.tensor(name, value.shape, moved, value=np.ascontiguousarray(value))


def conv(step: OpContext) -> None:
    """Write CONV_2D, or DEPTHWISE_CONV_2D for groups of one channel."""
    on_weighted_codes(step, 0)
    x = image(step, step.input())
    weight, qparams = step.array(1)
    groups, outputs = int(step.attribute("group", 1)), weight.shape[0]
    w = window(step, weight.shape[2:])
    x, padding = padded(step, x, w)
    weight = weight if weight.ndim == 4 else weight[:, :, None]
    alone = groups == x.shape[-1] and groups > 1
    order, axis = ((1, 2, 3, 0), 3) if alone else ((0, 2, 3, 1), 0)
    weights = stored(step, weight.transpose(order), qparams, axis)
    bias = bias_of(step, outputs, x, qparams)
    output, result = output_image(step, out_shape(step, outputs))
    fields = _fields(step, w, padding)
    if alone:
        fields["depthMultiplier"] = outputs // groups
    op = ("DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions") if alone else ("CONV_2D", "Conv2DOptions")
    step.file.operator(op[0], [x, weights, bias], [output], op[1], **fields)
    to_signal(step, output, result)


def _fields(step: OpContext, w: Window, padding: Padding) -> dict[str, Any]:
    return {
        "padding": padding,
        "strideH": w.stride[0], "strideW": w.stride[1],
        "dilationHFactor": w.dilation[0], "dilationWFactor": w.dilation[1],
        "fusedActivationFunction": step.activation,
    }  # fmt: skip


def gemm(step: OpContext) -> None:
    """Write FULLY_CONNECTED."""
    transposed = int(step.attribute("transB", 0))
    _linear(step, lambda w: w if transposed else w.T, 0 if transposed else 1)


def matmul(step: OpContext) -> None:
    """Write FULLY_CONNECTED for a constant matrix, else BATCH_MATMUL."""
    other = step.writer.tensor(step.node.input[1])
    if other.value is not None and other.value.ndim == 2:
        return _linear(step, lambda w: w.T, 1)
    if other.value is not None:
        do = "Multiply by one matrix, or compute the batch of matrices."
        raise step.refuse(f"a constant of {other.value.ndim} axes as the second factor", "a matrix", do)
    step.on_codes(0, 1)
    operands = [step.writer.plain(step.input(i)) for i in (0, 1)]
    step.file.operator("BATCH_MATMUL", operands, [step.result(step.shape)], "BatchMatMulOptions")


def _linear(step: OpContext, turn: Callable[[Array], Array], axis: int) -> None:
    on_weighted_codes(step, axis)
    x = step.input()
    weight, qparams = step.array(1)
    weight, qparams = turn(weight), qparams and _turned(step, weight, qparams, turn)
    if x.order is not None:
        weight = weight[:, x.order]
    else:
        x = step.writer.plain(x)
    along = 0 if qparams is None or qparams.block is None else qparams.axis
    weights, bias = stored(step, weight, qparams, along), bias_of(step, weight.shape[0], x, qparams)
    output = step.result(step.shape)
    step.file.operator(
        "FULLY_CONNECTED", [x, weights, bias], [output], "FullyConnectedOptions",
        fusedActivationFunction=step.activation, keepNumDims=len(x.shape) > 2,
    )  # fmt: skip


def _turned(step: OpContext, weight: Array, qparams: QParams, turn: Callable[[Array], Array]) -> QParams:
    # The qparams of a weight with its outputs first.
    if qparams.block is None:
        return qparams
    if not step.file.blocks:
        do = "Deploy by edit.deploy(QdqLowering()), or give the weight one scale for each output channel."
        raise step.refuse("a weight with scales of blocks", f"scales that {step.file.lowering} writes", do)
    shape = [n // qparams.block if i == qparams.axis else n for i, n in enumerate(weight.shape)]
    return evolve(qparams, scale=float_numbers(turn(np.array(qparams.scale, np.float32).reshape(shape))), axis=1)


def run_time(step: OpContext) -> None:
    """Keep the real values of a tensor: the operator that reads it quantizes it at run time."""
    step.keep(step.input())


def flattened(size: Sequence[int]) -> Array:
    """Return the column in the model's order for each column of an image [C, ...] that is flattened with its channels last.

    >>> flattened((2, 1, 3)).tolist()
    [0, 3, 1, 4, 2, 5]
    """
    return np.moveaxis(np.arange(int(np.prod(size))).reshape(tuple(size)), 0, -1).ravel()


def conv_transposed(step: OpContext) -> None:
    """Write TRANSPOSE_CONV without padding, and a STRIDED_SLICE that removes the padding.

    Raises:
        DeployError: dilations.
    """
    on_weighted_codes(step, 1)
    x = image(step, step.input())
    weight, qparams = one_group(step)
    w = window(step, weight.shape[2:])
    if w.dilation != (1, 1) and not step.file.any_padding:
        found = f"a transposed convolution, dilated by {w.dilation}"
        raise step.refuse(found, "no dilation", "Resize the image and convolve it.")
    weight = weight if weight.ndim == 4 else weight[:, :, None]
    more = ([0, 0] + [int(v) for v in step.attribute("output_padding") or []])[-2:]
    weights = stored(step, weight.transpose(1, 2, 3, 0), qparams, 0)
    bias = bias_of(step, weight.shape[1], x, qparams)
    output, result = output_image(step, out_shape(step, weight.shape[1]))
    if step.file.any_padding:
        step.file.operator(
            "TRANSPOSE_CONV", [x, weights, bias], [output], padding=(w.before[0], w.after[1], w.after[0], w.before[1]),
            strideH=w.stride[0], strideW=w.stride[1], dilationHFactor=w.dilation[0], dilationWFactor=w.dilation[1],
            adjustment=more, fusedActivationFunction=step.activation,
        )  # fmt: skip
        return to_signal(step, output, result)
    sizes = [(x.shape[1 + i] - 1) * w.stride[i] + w.kernel[i] + more[i] for i in (0, 1)]
    whole = step.inner("whole", (x.shape[0], *sizes, weight.shape[1]), last=True) if any(w.before) else output
    step.file.operator(
        "TRANSPOSE_CONV", [_shape(step, x, [*sizes, weight.shape[1]]), weights, x, bias], [whole], "TransposeConvOptions",
        padding="VALID", strideH=w.stride[0], strideW=w.stride[1],
        fusedActivationFunction=step.activation,
    )  # fmt: skip
    if whole is not output:
        _cut(step, whole, output, w.before)
    to_signal(step, output, result)


def one_group(step: OpContext) -> tuple[Array, QParams | None]:
    """Return the weight [I, O, ...] of a transposed convolution and its qparams; weights between other groups are 0."""
    weight, qparams = step.array(1)
    groups = int(step.attribute("group", 1))
    if groups == 1:
        return weight, qparams
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    whole = np.zeros((weight.shape[0], outputs * groups, *weight.shape[2:]), weight.dtype)
    for g in range(groups):
        rows = slice(g * inputs, (g + 1) * inputs)
        whole[rows, g * outputs : (g + 1) * outputs] = weight[rows]
    if qparams is not None and len(qparams.scale) > 1:
        qparams = evolve(qparams, scale=tuple(qparams.scale) * groups, zero_point=tuple(qparams.zero_point) * groups)
    return whole, qparams


def _shape(step: OpContext, x: NhwcTensor, sizes: list[int]) -> NhwcTensor:
    # Return the shape of the output: the batch of x, then the sizes.
    file, name = step.file, f"{step.name}.sizes"
    every, batch, shape = (file.tensor(f"{name}.{n}", (k,), dtype=np.int32) for n, k in (("in", 4), ("batch", 1), ("out", 4)))
    file.operator("SHAPE", [x], [every], "ShapeOptions", outType="INT32")
    ends = [file.integers([v], f"{name}.{n}") for n, v in (("from", 0), ("to", 1), ("by", 1))]
    file.operator("STRIDED_SLICE", [every, *ends], [batch], "StridedSliceOptions")
    rest = file.integers(sizes, f"{name}.rest")
    file.operator("CONCATENATION", [batch, rest], [shape], "ConcatenationOptions", axis=0, fusedActivationFunction="NONE")
    return shape


def _cut(step: OpContext, whole: NhwcTensor, output: NhwcTensor, before: tuple[int, int]) -> None:
    begin = [0, *before, 0]
    stop = [b + n for b, n in zip(begin, output.shape, strict=True)]
    inputs = [step.file.integers(v, f"{step.name}.{n}") for v, n in ((begin, "begin"), (stop, "end"), (np.ones(4), "strides"))]
    step.file.operator("STRIDED_SLICE", [whole, *inputs], [output], "StridedSliceOptions", beginMask=1, endMask=1)
