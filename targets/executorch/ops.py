"""Write the operators of TFLite as nodes of XNNPACK."""

from __future__ import annotations

import math
from typing import Any

from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.targets.executorch.builder import OpWriter, XnnpackBuilder
from qfunc.targets.executorch.constraints import require_blocks, require_slope, takes_product, takes_sum
from qfunc.targets.executorch.reductions import gelu_by_tanh, log_softmax, maximum, mean, minimum, power, total
from qfunc.targets.executorch.roots import inverse_root, root
from qfunc.targets.executorch.schema import NONE
from qfunc.targets.executorch.shape import concatenate, mirror, nearest, pad, reshape, resize, slices, tile, transpose
from qfunc.targets.litert.ratios import require_multiplier

_BOUNDS = {"NONE": None, "RELU": (0.0, math.inf), "RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0)}


def _unary(kind: str, **constants: Any) -> OpWriter:
    return lambda graph, inputs, out, fields: graph.node(kind, out, input_id=inputs[0], **constants)


def _binary(kind: str) -> OpWriter:
    def write(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
        bounds = _BOUNDS[fields.get("fusedActivationFunction", "NONE")]
        graph.node(kind, out, bounds, input1_id=inputs[0], input2_id=inputs[1])

    return write


def _product(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    product = _binary("XNNMultiply")
    (product if takes_product(inputs[0], inputs[1], out) else _in_float32(product))(graph, inputs, out, fields)


def _sum(kind: str) -> OpWriter:
    def write(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
        exact = _binary(kind)
        (exact if takes_sum(inputs, out) else _in_float32(exact))(graph, inputs, out, fields)

    return write


def _clamp(name: str) -> OpWriter:
    return lambda graph, inputs, out, fields: graph.node("XNNClamp", out, _BOUNDS[name], input_id=inputs[0])


def _in_float32(write: OpWriter) -> OpWriter:
    # For an op that XNNPACK has only in float32: dequantize its inputs and quantize its result.
    def write_in_float32(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
        reals = []
        for tensor in inputs:
            real = tensor
            if tensor.qparams is not None:
                real = graph.tensor(f"{tensor.name}.real", tensor.shape)
                graph.node("XNNConvert", real, input_id=tensor)
            reals.append(real)
        result = out if out.qparams is None else graph.tensor(f"{out.name}.real", out.shape)
        write(graph, reals, result, fields)
        if result is not out:
            graph.node("XNNConvert", out, input_id=result)

    return write_in_float32


def _conv(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    x, weight, bias = inputs
    out_channels, height, width, in_channels = weight.shape
    count = x.shape[-1] // in_channels
    groups = (count, in_channels, out_channels // count)
    _convolution("XNNConv2d", graph, x, weight, bias, out, fields, (height, width), groups)


def _depthwise(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    x, weight, bias = inputs
    _, height, width, outputs = weight.shape
    channels = x.shape[-1]
    groups = (channels, 1, outputs // channels)
    _convolution("XNNDepthwiseConv2d", graph, x, weight, bias, out, fields, (height, width), groups)


def _conv_transpose(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    x, weight, bias = inputs
    out_channels, height, width, in_channels = weight.shape
    groups = (1, in_channels, out_channels)
    _convolution("XNNConvTranspose2d", graph, x, weight, bias, out, fields, (height, width), groups)


def _convolution(
    kind: str, graph: XnnpackBuilder, x: NhwcTensor, weight: NhwcTensor, bias: NhwcTensor, out: NhwcTensor,
    fields: dict[str, Any], kernel: tuple[int, int], groups: tuple[int, int, int],
) -> None:  # fmt: skip
    require_multiplier(x, weight, out)
    adjustment = fields.get("adjustment", (0, 0))
    graph.node(
        kind, out, _BOUNDS[fields["fusedActivationFunction"]], **_padding(fields), input1_id=x, filter_id=weight, bias_id=bias,
        kernel_height=kernel[0], kernel_width=kernel[1],
        subsampling_height=fields["strideH"], subsampling_width=fields["strideW"],
        dilation_height=fields["dilationHFactor"], dilation_width=fields["dilationWFactor"],
        groups=groups[0], group_input_channels=groups[1], group_output_channels=groups[2],
        adjustment_height=adjustment[0], adjustment_width=adjustment[1],
    )  # fmt: skip


def _padding(fields: dict[str, Any]) -> dict[str, int]:
    padding = (0, 0, 0, 0) if fields["padding"] == "VALID" else fields["padding"]
    return dict(zip(("padding_top", "padding_right", "padding_bottom", "padding_left"), padding, strict=True))


def _linear(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    x, weight = inputs[:2]
    require_multiplier(x, weight, out)
    bias = inputs[2] if len(inputs) > 2 else NONE
    bounds = _BOUNDS[fields["fusedActivationFunction"]]
    if weight.qparams is not None and weight.qparams.block is not None:
        require_blocks(weight, weight.qparams.block)
        x = graph.quantized_at_run_time(x)
    graph.node("XNNFullyConnected", out, bounds, input1_id=x, filter_id=weight, bias_id=bias)


def _pool(kind: str) -> OpWriter:
    def write(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
        if (fields["filterHeight"], fields["filterWidth"], fields["strideH"], fields["strideW"]) == (1, 1, 1, 1):
            # XNNPACK has no pool over one entry.
            bounds = _BOUNDS[fields["fusedActivationFunction"]]
            return graph.node("XNNClamp" if bounds else "XNNCopy", out, bounds, input_id=inputs[0])
        graph.node(
            kind, out, _BOUNDS[fields["fusedActivationFunction"]], **_padding(fields), input_id=inputs[0],
            pooling_height=fields["filterHeight"], pooling_width=fields["filterWidth"], stride_height=fields["strideH"],
            stride_width=fields["strideW"], dilation_height=fields["dilationH"], dilation_width=fields["dilationW"],
        )  # fmt: skip

    return write


def _matmul(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    # XNNPACK multiplies codes only if the second operand has no zero point.
    second = inputs[1].qparams
    product = _binary("XNNBatchMatrixMultiply")
    (product if second is None or second.zero_point == (0,) else _in_float32(product))(graph, inputs, out, fields)


def _leaky_relu(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    require_slope(inputs[0], out, float(fields["alpha"]))
    graph.node("XNNLeakyReLU", out, input_id=inputs[0], negative_slope=fields["alpha"])


def _reshape(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    reshape(graph, inputs[0], out.shape, out)


def _gelu(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    if fields["approximate"]:
        return _in_float32(gelu_by_tanh)(graph, inputs, out, fields)
    graph.node("XNNGelu", out, input_id=inputs[0])


def _elu(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    graph.node("XNNELU", out, input_id=inputs[0], alpha=fields["alpha"])


def _squared_difference(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    difference = graph.tensor(f"{out.name}.difference", out.shape)
    graph.node("XNNSubtract", difference, input1_id=inputs[0], input2_id=inputs[1])
    graph.node("XNNSquare", out, input_id=difference)


NODES: dict[str, OpWriter] = {
    "QUANTIZE": _unary("XNNConvert"), "DEQUANTIZE": _unary("XNNConvert"),
    "CONV_2D": _conv, "DEPTHWISE_CONV_2D": _depthwise, "TRANSPOSE_CONV": _conv_transpose,
    "FULLY_CONNECTED": _linear,
    "BATCH_MATMUL": _matmul, "ADD": _sum("XNNAdd"), "SUB": _sum("XNNSubtract"), "MUL": _product,
    "DIV": _binary("XNNDiv"),
    "MAXIMUM": _binary("XNNMaximum"), "MINIMUM": _binary("XNNMinimum"),
    "RELU": _clamp("RELU"), "RELU6": _clamp("RELU6"), "RELU_N1_TO_1": _clamp("RELU_N1_TO_1"),
    "LEAKY_RELU": _leaky_relu, "PRELU": _binary("XNNPReLU"),
    "LOGISTIC": _unary("XNNSigmoid"), "TANH": _unary("XNNTanh"), "HARD_SWISH": _unary("XNNHardswish"),
    "GELU": _gelu, "ELU": _elu,
    "SOFTMAX": _in_float32(_unary("XNNSoftmax")), "EXP": _unary("XNNExp"), "SQRT": root,
    "NEG": _unary("XNNNegate"),
    "RSQRT": inverse_root, "SQUARED_DIFFERENCE": _squared_difference,
    "ABS": _unary("XNNAbs"), "LOG": _unary("XNNLog"), "SIN": _unary("XNNSin"), "COS": _unary("XNNCos"),
    "POW": power, "FLOOR": _unary("XNNFloor"), "CEIL": _unary("XNNCeiling"), "LOG_SOFTMAX": log_softmax,
    "SUM": total, "REDUCE_MAX": maximum, "REDUCE_MIN": minimum, "MIRROR_PAD": mirror,
    "MAX_POOL_2D": _pool("XNNMaxPooling2d"), "AVERAGE_POOL_2D": _in_float32(_pool("XNNAvgPooling2d")), "MEAN": mean,
    "RESHAPE": _reshape, "TRANSPOSE": transpose,
    "STRIDED_SLICE": slices, "CONCATENATION": concatenate, "PAD": pad, "PADV2": pad, "TILE": tile,
    "RESIZE_BILINEAR": resize, "RESIZE_NEAREST_NEIGHBOR": nearest,
}  # fmt: skip
"""The writer of each operator of TFLite, by its name: the argument of `XnnpackBuilder`."""
