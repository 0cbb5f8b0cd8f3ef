"""Operators of TFLite as nodes of XNNPACK."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.xnnpack.builder import OpWriter, XnnpackBuilder
from qfunc.lowering.xnnpack.constraints import require_exact_gelu, require_multiplier, require_slope
from qfunc.lowering.xnnpack.schema import NONE
from qfunc.lowering.xnnpack.shape import concatenate, nearest, pad, reshape, resize, slices, tile, transpose

_INFINITE = math.inf
_BOUNDS = {"NONE": None, "RELU": (0.0, _INFINITE), "RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0)}
_KEEP_DIMS = 0x40  # XNN_FLAG_KEEP_DIMS


def _one(kind: str, **more: Any) -> OpWriter:
    return lambda graph, given, out, fields: graph.node(kind, out, input_id=given[0], **more)


def _two(kind: str) -> OpWriter:
    def write(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
        bounds = _BOUNDS[fields.get("fusedActivationFunction", "NONE")]
        graph.node(kind, out, bounds, input1_id=given[0], input2_id=given[1])

    return write


def _clamp(name: str) -> OpWriter:
    return lambda graph, given, out, fields: graph.node("XNNClamp", out, _BOUNDS[name], input_id=given[0])


def _real(write: OpWriter) -> OpWriter:
    # By the op on real values where XNNPACK has it for those alone.
    def through(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
        reals = []
        for held in given:
            real = held
            if held.qparams is not None:
                real = graph.tensor(f"{held.name}.real", held.shape)
                graph.node("XNNConvert", real, input_id=held)
            reals.append(real)
        made = out if out.qparams is None else graph.tensor(f"{out.name}.real", out.shape)
        write(graph, reals, made, fields)
        if made is not out:
            graph.node("XNNConvert", out, input_id=made)

    return through


def _conv(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    x, weight, bias = given
    outputs, height, width, inputs = weight.shape
    groups = x.shape[-1] // inputs
    _convolution("XNNConv2d", graph, x, weight, bias, out, fields, (height, width), (groups, inputs, outputs // groups))


def _depthwise(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    x, weight, bias = given
    _, height, width, outputs = weight.shape
    channels = x.shape[-1]
    each = (channels, 1, outputs // channels)
    _convolution("XNNDepthwiseConv2d", graph, x, weight, bias, out, fields, (height, width), each)


def _conv_transposed(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    x, weight, bias = given
    outputs, height, width, inputs = weight.shape
    _convolution("XNNConvTranspose2d", graph, x, weight, bias, out, fields, (height, width), (1, inputs, outputs))


def _convolution(
    kind: str, graph: XnnpackBuilder, x: NhwcTensor, weight: NhwcTensor, bias: NhwcTensor, out: NhwcTensor,
    fields: dict[str, Any], kernel: tuple[int, int], groups: tuple[int, int, int],
) -> None:  # fmt: skip
    require_multiplier(x, weight, out)
    more = fields.get("adjustment", (0, 0))
    graph.node(
        kind, out, _BOUNDS[fields["fusedActivationFunction"]], **_around(fields), input1_id=x, filter_id=weight, bias_id=bias,
        kernel_height=kernel[0], kernel_width=kernel[1],
        subsampling_height=fields["strideH"], subsampling_width=fields["strideW"],
        dilation_height=fields["dilationHFactor"], dilation_width=fields["dilationWFactor"],
        groups=groups[0], group_input_channels=groups[1], group_output_channels=groups[2],
        adjustment_height=more[0], adjustment_width=more[1],
    )  # fmt: skip


def _around(fields: dict[str, Any]) -> dict[str, int]:
    padding = (0, 0, 0, 0) if fields["padding"] == "VALID" else fields["padding"]
    return dict(zip(("padding_top", "padding_right", "padding_bottom", "padding_left"), padding, strict=True))


def _linear(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    require_multiplier(given[0], given[1], out)
    bias = given[2] if len(given) > 2 else NONE
    bounds = _BOUNDS[fields["fusedActivationFunction"]]
    graph.node("XNNFullyConnected", out, bounds, input1_id=given[0], filter_id=given[1], bias_id=bias)


def _pool(kind: str) -> OpWriter:
    def write(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
        graph.node(
            kind, out, _BOUNDS[fields["fusedActivationFunction"]], **_around(fields), input_id=given[0],
            pooling_height=fields["filterHeight"], pooling_width=fields["filterWidth"], stride_height=fields["strideH"],
            stride_width=fields["strideW"], dilation_height=fields["dilationH"], dilation_width=fields["dilationW"],
        )  # fmt: skip

    return write


def _mean(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    # The axes first, as the rows of an image of one column whose channels are all others.
    x, axes = given[0], [int(a) for a in np.ravel(np.asarray(given[1].value))]
    rest = [i for i in range(1, len(x.shape)) if i not in axes]
    order = [0, *axes, *rest]
    if order != list(range(len(x.shape))):
        turned = graph.tensor(f"{out.name}.turned", [x.shape[i] for i in order], x.qparams)
        graph.node("XNNStaticTranspose", turned, num_dims=len(order), perm=order, input_id=x)
        x = turned
    rows, columns = math.prod(x.shape[1 : 1 + len(axes)]), math.prod(x.shape[1 + len(axes) :])
    image = reshape(graph, x, (x.shape[0], rows, 1, columns), f"{out.name}.image")
    made = graph.tensor(f"{out.name}.mean", (x.shape[0], 1, 1, columns), out.qparams)
    graph.node("XNNGlobalAvgPooling2d", made, input_id=image, flags=_KEEP_DIMS)
    reshape(graph, made, out.shape, out)


def _matmul(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    # On codes only where the second operand has no zero point.
    second = given[1].qparams
    product = _two("XNNBatchMatrixMultiply")
    (product if second is None or second.zero_point == (0,) else _real(product))(graph, given, out, fields)


def _leaky_relu(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    require_slope(given[0], out, float(fields["alpha"]))
    graph.node("XNNLeakyReLU", out, input_id=given[0], negative_slope=fields["alpha"])


def _reshape(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    reshape(graph, given[0], out.shape, out)


def _gelu(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    require_exact_gelu(out, bool(fields["approximate"]))
    graph.node("XNNGelu", out, input_id=given[0])


def _elu(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    graph.node("XNNELU", out, input_id=given[0], alpha=1.0)


def _squared_difference(graph: XnnpackBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    difference = graph.tensor(f"{out.name}.difference", out.shape)
    graph.node("XNNSubtract", difference, input1_id=given[0], input2_id=given[1])
    graph.node("XNNSquare", out, input_id=difference)


NODES: dict[str, OpWriter] = {
    "QUANTIZE": _one("XNNConvert"), "DEQUANTIZE": _one("XNNConvert"),
    "CONV_2D": _conv, "DEPTHWISE_CONV_2D": _depthwise, "TRANSPOSE_CONV": _conv_transposed,
    "FULLY_CONNECTED": _linear,
    "BATCH_MATMUL": _matmul, "ADD": _two("XNNAdd"), "SUB": _two("XNNSubtract"), "MUL": _two("XNNMultiply"),
    "DIV": _two("XNNDiv"),
    "MAXIMUM": _two("XNNMaximum"), "MINIMUM": _two("XNNMinimum"),
    "RELU": _clamp("RELU"), "RELU6": _clamp("RELU6"), "RELU_N1_TO_1": _clamp("RELU_N1_TO_1"),
    "LEAKY_RELU": _leaky_relu, "PRELU": _two("XNNPReLU"),
    "LOGISTIC": _one("XNNSigmoid"), "TANH": _one("XNNTanh"), "HARD_SWISH": _one("XNNHardswish"),
    "GELU": _gelu, "ELU": _elu,
    "SOFTMAX": _real(_one("XNNSoftmax")), "EXP": _one("XNNExp"), "SQRT": _one("XNNSquareRoot"), "NEG": _one("XNNNegate"),
    "RSQRT": _one("XNNReciprocalSquareRoot"), "SQUARED_DIFFERENCE": _squared_difference,
    "ABS": _one("XNNAbs"),
    "MAX_POOL_2D": _pool("XNNMaxPooling2d"), "AVERAGE_POOL_2D": _real(_pool("XNNAvgPooling2d")), "MEAN": _mean,
    "RESHAPE": _reshape, "TRANSPOSE": transpose,
    "STRIDED_SLICE": slices, "CONCATENATION": concatenate, "PAD": pad, "PADV2": pad, "TILE": tile,
    "RESIZE_BILINEAR": resize, "RESIZE_NEAREST_NEIGHBOR": nearest,
}  # fmt: skip
"""The writer of each operator of TFLite, by the name of the operator: the argument of `XnnpackBuilder`."""

__all__ = ["NODES"]
