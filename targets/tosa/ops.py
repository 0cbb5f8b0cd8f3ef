"""The writers of TOSA: of the operators of TFLite, and of ONNX ops that TFLite does not have on codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from qfunc.lowering.nhwc.context import OpContext, node_writer
from qfunc.lowering.nhwc.elementwise import binary
from qfunc.lowering.nhwc.images import image, out_shape, output_image, to_signal
from qfunc.lowering.nhwc.linear import bias_of, on_weighted_codes, one_group, stored
from qfunc.lowering.nhwc.ops import WRITERS
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.nhwc.writer import UnitWriter, Writer
from qfunc.lowering.windows import window
from qfunc.targets.tosa.builder import OpWriter, TosaBuilder
from qfunc.targets.tosa.composed.glu import glu, write_glu
from qfunc.targets.tosa.composed.indexing import embedding, gather
from qfunc.targets.tosa.composed.norms import group_norm, instance_norm, layer_norm, norm
from qfunc.targets.tosa.composed.prelu import prelu
from qfunc.targets.tosa.composed.rms_norm import rms_norm
from qfunc.targets.tosa.composed.softmax import masked_softmax, softmax
from qfunc.targets.tosa.functions import FUNCTIONS, by_formula
from qfunc.targets.tosa.linear import conv, conv_transpose, depthwise, linear, matmul, product
from qfunc.targets.tosa.pooling import average_pool, extreme_of_two, extreme_writer, max_pool, mean, sum_writer
from qfunc.targets.tosa.rescale import BOUNDS, clamp_codes, write_clamp
from qfunc.targets.tosa.shape import bilinear, concatenate, mirror, nearest, pad, reshape, slices, tile, transpose
from qfunc.targets.tosa.tables import CURVES, formula_table, requantize, silu, table_function, table_writer


def _bounded(name: str) -> OpWriter:
    return lambda graph, inputs, out, fields: write_clamp(graph, inputs[0], out, *BOUNDS[name])


def _extreme(lower: bool) -> OpWriter:
    # A Clip has one code as its bound; torch.maximum has two tensors.
    of_two = extreme_of_two("MAXIMUM" if lower else "MINIMUM")

    def write(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
        if inputs[1].value is None or np.size(inputs[1].value) != 1:
            return of_two(graph, inputs, out, fields)  # type: ignore[no-any-return]
        (code,) = np.ravel(np.asarray(inputs[1].value))
        clamp_codes(graph, inputs[0], out, int(code) if lower else -128, 127 if lower else int(code))

    return write


def _of_two(name: str) -> Callable[[Writer, onnx.NodeProto], None]:
    def write(step: OpContext) -> None:
        step.on_codes(0, 1)
        binary(name, "MaximumMinimumOptions", codes=False)(step)

    return node_writer(write)


def conv_transpose_node(step: OpContext) -> None:
    """Write a transposed convolution of ONNX; TOSA's padding is the output padding minus ONNX's padding.

    Raises:
        DeployError: dilations, or padding as large as the window.
    """
    on_weighted_codes(step, 1)
    x = image(step, step.input())
    weight, qparams = one_group(step)
    w = window(step, weight.shape[2:])
    output_padding = ([0, 0] + [int(v) for v in step.attribute("output_padding") or []])[-2:]
    margins = [v for b, a, m in zip(w.before, w.after, output_padding, strict=True) for v in (-b, m - a)]
    covered = all(min(margins[2 * i : 2 * i + 2]) > -w.kernel[i] for i in (0, 1))
    if w.dilation != (1, 1) or not covered:
        found = f"a transposed convolution, dilated by {w.dilation}, padded by {w.before}"
        raise step.refuse(found, "no dilation, padding below the window's size", "Resize the image and convolve it.")
    weight = weight if weight.ndim == 4 else weight[:, :, None]
    ohwi_weight = stored(step, weight.transpose(1, 2, 3, 0), qparams, 0)
    bias = bias_of(step, weight.shape[1], x, qparams)
    result, out = output_image(step, out_shape(step, weight.shape[1]))
    step.file.operator(
        "TRANSPOSE_CONV", [x, ohwi_weight, bias], [result], outPad=margins, strideH=w.stride[0], strideW=w.stride[1],
        fusedActivationFunction=step.activation,
    )  # fmt: skip
    to_signal(step, result, out)


NODES: dict[str, OpWriter] = {
    "QUANTIZE": requantize, "FORMULA": formula_table,
    "CONV_2D": conv, "DEPTHWISE_CONV_2D": depthwise, "FULLY_CONNECTED": linear, "TRANSPOSE_CONV": conv_transpose,
    "BATCH_MATMUL": matmul, "ADD": sum_writer("ADD"), "SUB": sum_writer("SUB"), "MUL": product,
    "MAX_POOL_2D": max_pool, "AVERAGE_POOL_2D": average_pool, "MEAN": mean,
    "SOFTMAX": softmax, "NORM": norm, "GLU": write_glu, "PRELU": prelu, "GATHER": gather,
    "REDUCE_MAX": extreme_writer("REDUCE_MAX"), "REDUCE_MIN": extreme_writer("REDUCE_MIN"),
    **{name: _bounded(name) for name in BOUNDS}, "MAXIMUM": _extreme(True), "MINIMUM": _extreme(False),
    **{name: table_writer(name) for name in CURVES},
    "RESHAPE": reshape, "TRANSPOSE": transpose, "STRIDED_SLICE": slices, "CONCATENATION": concatenate, "PAD": pad, "PADV2": pad,
    "MIRROR_PAD": mirror, "TILE": tile, "RESIZE_BILINEAR": bilinear, "RESIZE_NEAREST_NEIGHBOR": nearest,
}  # fmt: skip
"""The writer of each operator of TFLite, by its name: the argument of `TosaBuilder`."""

_BY_CLAMP = ("Relu", "Clip", "Identity")
STEPS = (
    WRITERS
    | {op: node_writer(by_formula(WRITERS.get(op))) for op in FUNCTIONS if op not in _BY_CLAMP}
    | {op: node_writer(table_function) for op in CURVES}
    | {op: node_writer(by_formula(_of_two(name))) for op, name in (("Max", "MAXIMUM"), ("Min", "MINIMUM"))}
    | {"Tanh": node_writer(by_formula(node_writer(table_function)))}
    | {"LayerNormalization": node_writer(layer_norm), "GroupNormalization": node_writer(group_norm)}
    | {"InstanceNormalization": node_writer(instance_norm), "Gather": node_writer(embedding(WRITERS["Gather"]))}
    | {"ConvTranspose": node_writer(conv_transpose_node)}
)
"""The writer of each operator of ONNX, like `nhwc.ops.WRITERS`."""

COMPOSED: dict[str, UnitWriter] = {"glu": glu, "masked_softmax": masked_softmax, "rms_norm": rms_norm, "silu": silu}
"""The writer of each kind of unit that ONNX has as several nodes."""
