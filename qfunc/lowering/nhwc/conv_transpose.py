"""Write transposed convolutions as TFLite's operators."""

from __future__ import annotations

import numpy as np
from attrs import evolve

from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.images import image, out_shape, output_image, to_signal
from qfunc.lowering.nhwc.linear import bias_of, on_weighted_codes, stored
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.qdq_reader import Array, QParams
from qfunc.lowering.windows import window


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
        qparams = evolve(qparams, scale=qparams.scale * groups, zero_point=qparams.zero_point * groups)
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


__all__ = ["conv_transposed", "one_group"]
