"""Write the convolutions, linear layers and products of TFLite in TOSA, each with a RESCALE after it."""

from __future__ import annotations

from typing import Any

import numpy as np

from qfunc.errors import DeployError
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.qdq.qparams import Array
from qfunc.targets.tosa.builder import TosaBuilder
from qfunc.targets.tosa.images import fit_windows, write_concat, write_reshape, write_slice
from qfunc.targets.tosa.rescale import multiplier, qparams_of, scale_ratio, to_codes, to_int32
from qfunc.targets.tosa.schema import INT32

Fields = dict[str, Any]


def conv(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """Write CONV2D for each group."""
    x, weight, bias = inputs
    value = _value(weight)
    groups = x.shape[-1] // value.shape[3]
    if groups == 1:
        return _convolution(graph, "CONV2D", x, weight, bias, out, fields, value)
    in_channels, out_channels, parts = value.shape[3], value.shape[0] // groups, []
    for g in range(groups):
        channels, suffix = slice(g * out_channels, (g + 1) * out_channels), f"group{g}"
        part_x = graph.tensor_like(x, f"{out.name}.{suffix}.given", (*x.shape[:3], in_channels))
        write_slice(graph, x, part_x, (0, 0, 0, g * in_channels))
        parts.append(graph.tensor_like(out, suffix, (*out.shape[:3], out_channels)))
        codes, qparams = value[channels], _channel_qparams(weight, channels)
        part_weight = graph.tensor(f"{weight.name}.{suffix}", codes.shape, qparams, value=codes)
        bias_codes = _value(bias)[channels]
        part_bias = graph.tensor(f"{bias.name}.{suffix}", bias_codes.shape, bias.qparams, value=bias_codes)
        _convolution(graph, "CONV2D", part_x, part_weight, part_bias, parts[-1], fields, codes)
    write_concat(graph, parts, out, 3)


def _channel_qparams(weight: NhwcTensor, channels: slice) -> Any:
    assert weight.qparams is not None
    if len(weight.qparams.scale) == 1:
        return weight.qparams
    return type(weight.qparams)(weight.qparams.scale[channels], weight.qparams.zero_point[channels])


def depthwise(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """Write DEPTHWISE_CONV2D, whose weight is [height, width, channels, multiplier]."""
    x, weight, bias = inputs
    value = _value(weight)
    _, height, width, outputs = value.shape
    hwcm = value.reshape(height, width, x.shape[-1], outputs // x.shape[-1])
    reordered = graph.tensor(f"{weight.name}.each", hwcm.shape, weight.qparams, value=hwcm)
    _convolution(graph, "DEPTHWISE_CONV2D", x, reordered, bias, out, fields, value.transpose(3, 1, 2, 0))


def _convolution(
    graph: TosaBuilder,
    op: str,
    x: NhwcTensor,
    weight: NhwcTensor,
    bias: NhwcTensor,
    out: NhwcTensor,
    fields: Fields,
    outputs_first: Array,
) -> None:
    # `outputs_first` is the weight as [outputs, height, width, inputs].
    dilation = (fields["dilationHFactor"], fields["dilationWFactor"])
    window = [d * (k - 1) + 1 for d, k in zip(dilation, outputs_first.shape[1:3], strict=True)]
    x, pad = fit_windows(graph, x, window, fields, out.name)
    acc = graph.int32_tensor(f"{out.name}.sum", out.shape)
    graph.node(
        op, [x, weight, bias, *zeros(graph, qparams_of(x)[1], 0)], acc, pad=pad, stride=[fields["strideH"], fields["strideW"]],
        dilation=list(dilation), local_bound=0, acc_type=INT32,
    )  # fmt: skip
    requantize_sums(graph, acc, x, weight, out, max_sums(outputs_first, bias, x), fields)


def conv_transpose(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """Write TRANSPOSE_CONV2D; its padding adds to the output, and crops it if it is negative."""
    x, weight, bias = inputs
    acc = graph.int32_tensor(f"{out.name}.sum", out.shape)
    graph.node(
        "TRANSPOSE_CONV2D", [x, weight, bias, *zeros(graph, qparams_of(x)[1], 0)], acc, out_pad=fields["outPad"],
        stride=[fields["strideH"], fields["strideW"]], local_bound=0, acc_type=INT32,
    )  # fmt: skip
    requantize_sums(graph, acc, x, weight, out, max_sums(_value(weight), bias, x), fields)


def linear(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """Write a linear layer as CONV2D over images of one pixel."""
    x, weight, bias = inputs
    value = _value(weight)
    out_features, in_features = value.shape
    rows = int(np.prod(x.shape)) // in_features
    image = write_reshape(graph, x, (rows, 1, 1, in_features), f"{out.name}.rows")
    ohwi = value.reshape(out_features, 1, 1, in_features)
    ohwi_weight = graph.tensor(f"{weight.name}.ohwi", ohwi.shape, weight.qparams, value=ohwi)
    shape = (rows, 1, 1, out_features)
    acc, rows_out = graph.int32_tensor(f"{out.name}.sum", shape), graph.tensor_like(out, "row", shape)
    graph.node(
        "CONV2D", [image, ohwi_weight, bias, *zeros(graph, qparams_of(x)[1], 0)], acc, pad=[0] * 4, stride=[1, 1],
        dilation=[1, 1], local_bound=0, acc_type=INT32,
    )  # fmt: skip
    requantize_sums(graph, acc, x, weight, rows_out, max_sums(value, bias, x), fields)
    write_reshape(graph, rows_out, out.shape, out)


def matmul(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """Write MATMUL, which has one batch axis.

    Raises:
        DeployError: batch axes that broadcast.
    """
    a, b = inputs
    if a.shape[:-2] != b.shape[:-2]:
        do = "Expand the smaller factor to the batch axes of the other, or multiply by a constant matrix."
        found = f"factors of shapes {a.shape[1:]} and {b.shape[1:]}"
        raise DeployError(where=f"tensor {out.name!r}", found=found, wanted="equal batch axes", do=do)
    batch = int(np.prod(a.shape[:-2], dtype=int))
    flat = [
        write_reshape(graph, tensor, (batch, *tensor.shape[-2:]), f"{out.name}.{name}")
        for tensor, name in zip(inputs, ("a", "b"), strict=True)
    ]
    shape = (batch, *out.shape[-2:])
    acc, flat_out = graph.int32_tensor(f"{out.name}.sum", shape), graph.tensor_like(out, "flat", shape)
    graph.node("MATMUL", [*flat, *zeros(graph, qparams_of(a)[1], qparams_of(b)[1])], acc)
    assert a.qparams is not None
    pair = multiplier(scale_ratio(a.qparams, qparams_of(b)[0]) / np.float64(qparams_of(out)[0]))
    to_codes(graph, acc, flat_out, pair, a.shape[-1] * max_magnitude(a) * max_magnitude(b), fields)
    write_reshape(graph, flat_out, out.shape, out)


def product(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """Write MUL of two tensors, after their zero points are subtracted."""
    rank = len(out.shape)
    a, b = (with_rank(graph, tensor, rank, f"{out.name}.{name}") for tensor, name in zip(inputs, ("a", "b"), strict=True))
    factors = [to_int32(graph, tensor, f"{out.name}.{name}.wide") for tensor, name in ((a, "a"), (b, "b"))]
    acc = graph.int32_tensor(f"{out.name}.product", out.shape)
    graph.node("MUL", [*factors, graph.constant(0, np.int8)], acc)
    assert a.qparams is not None
    pair = multiplier(scale_ratio(a.qparams, qparams_of(b)[0]) / np.float64(qparams_of(out)[0]))
    to_codes(graph, acc, out, pair, max_magnitude(a) * max_magnitude(b), fields)


def with_rank(graph: TosaBuilder, tensor: NhwcTensor, rank: int, name: str) -> NhwcTensor:
    """Return a tensor with leading axes of length 1, because TOSA broadcasts tensors of equal rank only."""
    if len(tensor.shape) == rank:
        return tensor
    return write_reshape(graph, tensor, (*[1] * (rank - len(tensor.shape)), *tensor.shape), name)


def requantize_sums(
    graph: TosaBuilder, acc: NhwcTensor, x: NhwcTensor, weight: NhwcTensor, out: NhwcTensor, sums: Array, fields: Fields
) -> None:
    """Write the RESCALE from the sums of products with a weight to codes."""
    assert weight.qparams is not None
    pair = multiplier(scale_ratio(weight.qparams, qparams_of(x)[0]) / np.float64(qparams_of(out)[0]))
    to_codes(graph, acc, out, pair, sums if len(pair[0]) > 1 else sums.max(), fields)


def zeros(graph: TosaBuilder, a: int, b: int) -> list[str]:
    """Return the names of the constants of two zero points."""
    return [graph.constant(z, np.int8) for z in (a, b)]


def max_magnitude(tensor: NhwcTensor) -> int:
    """Return the largest magnitude of a code minus the zero point."""
    zero = qparams_of(tensor)[1]
    return max(127 - zero, zero + 128)


def max_sums(weight: Array, bias: NhwcTensor, x: NhwcTensor) -> Array:
    """Return a bound of the magnitude of each output's sum; the outputs are the first axis of `weight`."""
    total = np.abs(weight.astype(np.float64)).reshape(weight.shape[0], -1).sum(1)
    return np.asarray(total * max_magnitude(x) + np.abs(_value(bias).astype(np.float64)))


def _value(tensor: NhwcTensor) -> Array:
    assert tensor.value is not None
    return tensor.value
