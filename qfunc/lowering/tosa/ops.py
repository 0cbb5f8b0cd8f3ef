"""Operators of TFLite, and those of ONNX that TFLite does not have on codes, as TOSA's."""

from __future__ import annotations

from typing import Any

import numpy as np

from qfunc.lowering.nhwc.context import OpContext, node_writer
from qfunc.lowering.nhwc.images import image, out_shape, output_image, to_signal
from qfunc.lowering.nhwc.linear import bias_of, on_weighted_codes, stored
from qfunc.lowering.nhwc.ops import WRITERS
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.tosa.builder import OpWriter, TosaBuilder
from qfunc.lowering.tosa.linear import conv, depthwise, linear, matmul, product, transposed
from qfunc.lowering.tosa.pooling import average_pool, max_pool, mean, summed
from qfunc.lowering.tosa.rescale import BOUNDS, between, clamp
from qfunc.lowering.tosa.shape import bilinear, concatenate, mirror, nearest, pad, reshape, slices, tile, transpose
from qfunc.lowering.tosa.tables import CURVES, requantize, sigmoid, table_function
from qfunc.lowering.tosa.tables import table_writer as table_of
from qfunc.lowering.windows import window


def _bounded(name: str) -> OpWriter:
    return lambda graph, given, out, fields: clamp(graph, given[0], out, *BOUNDS[name])


def _extreme(low: bool) -> OpWriter:
    # With one code, which a Clip has.
    def write(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
        (code,) = np.ravel(np.asarray(given[1].value))
        between(graph, given[0], out, int(code) if low else -128, 127 if low else int(code))

    return write


def conv_transposed(step: OpContext) -> None:
    """A transposed convolution, whose padding is what the output's border lacks.

    Raises:
        DeployError: groups, dilations, or more padding than a window covers.
    """
    on_weighted_codes(step, 1)
    x = image(step, step.input())
    weight, qparams = step.array(1)
    w = window(step, weight.shape[2:])
    more = ([0, 0] + [int(v) for v in step.attribute("output_padding") or []])[-2:]
    pads = [v for b, a, m in zip(w.before, w.after, more, strict=True) for v in (-b, m - a)]
    groups, inside = int(step.attribute("group", 1)), all(min(pads[2 * i : 2 * i + 2]) > -w.kernel[i] for i in (0, 1))
    if groups != 1 or w.dilation != (1, 1) or not inside:
        found = f"a transposed convolution of {groups} groups, dilated by {w.dilation}, padded by {w.before}"
        raise step.refuse(found, "one group, not dilated, padded by less than the window", "Resize the image and convolve it.")
    weight = weight if weight.ndim == 4 else weight[:, :, None]
    held = stored(step, weight.transpose(1, 2, 3, 0), qparams, 0)
    bias = bias_of(step, weight.shape[1], x, qparams)
    made, result = output_image(step, out_shape(step, weight.shape[1]))
    step.file.operator(
        "TRANSPOSE_CONV", [x, held, bias], [made], outPad=pads, strideH=w.stride[0], strideW=w.stride[1],
        fusedActivationFunction=step.activation,
    )  # fmt: skip
    to_signal(step, made, result)


NODES: dict[str, OpWriter] = {
    "QUANTIZE": requantize,
    "CONV_2D": conv, "DEPTHWISE_CONV_2D": depthwise, "FULLY_CONNECTED": linear, "TRANSPOSE_CONV": transposed,
    "BATCH_MATMUL": matmul, "ADD": summed("ADD"), "SUB": summed("SUB"), "MUL": product,
    "MAX_POOL_2D": max_pool, "AVERAGE_POOL_2D": average_pool, "MEAN": mean,
    **{name: _bounded(name) for name in BOUNDS}, "MAXIMUM": _extreme(True), "MINIMUM": _extreme(False),
    **{name: table_of(name) for name in CURVES},
    "RESHAPE": reshape, "TRANSPOSE": transpose, "STRIDED_SLICE": slices, "CONCATENATION": concatenate, "PAD": pad, "PADV2": pad,
    "MIRROR_PAD": mirror, "TILE": tile, "RESIZE_BILINEAR": bilinear, "RESIZE_NEAREST_NEIGHBOR": nearest,
}  # fmt: skip
"""The writer of each operator of TFLite, by the name of the operator: the argument of `TosaBuilder`."""

STEPS = (
    WRITERS
    | {op: node_writer(table_function) for op in CURVES}
    | {"Sigmoid": node_writer(sigmoid), "ConvTranspose": node_writer(conv_transposed)}
)
"""How each operator of ONNX is written to a file of TOSA's, as `tflite_ops.WRITERS`."""

__all__ = ["NODES", "STEPS", "conv_transposed"]
