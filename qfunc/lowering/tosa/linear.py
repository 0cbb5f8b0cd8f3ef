"""Convolutions, linear layers and products of TFLite as TOSA's, each with the RESCALE after it."""

from __future__ import annotations

from typing import Any

import numpy as np

from qfunc.errors import DeployError
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.qdq_reader import Array
from qfunc.lowering.tosa.builder import TosaBuilder
from qfunc.lowering.tosa.images import cut, fit_windows, joined, reshaped
from qfunc.lowering.tosa.rescale import multiplier, qparams_of, scale_ratio, to_codes, widened
from qfunc.lowering.tosa.schema import INT32

Fields = dict[str, Any]


def conv(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """CONV2D, one for each group."""
    x, weight, bias = given
    value = _value(weight)
    groups = x.shape[-1] // value.shape[3]
    if groups == 1:
        return _convolution(graph, "CONV2D", x, weight, bias, out, fields, value)
    inputs, outputs, parts = value.shape[3], value.shape[0] // groups, []
    for g in range(groups):
        own, at = slice(g * outputs, (g + 1) * outputs), f"group{g}"
        part = graph.inner(x, f"{out.name}.{at}.given", (*x.shape[:3], inputs))
        cut(graph, x, part, (0, 0, 0, g * inputs))
        parts.append(graph.inner(out, at, (*out.shape[:3], outputs)))
        held = graph.tensor(f"{weight.name}.{at}", value[own].shape, _of_channels(weight, own), value=value[own])
        codes = _value(bias)[own]
        _convolution(
            graph, "CONV2D", part, held, graph.tensor(f"{bias.name}.{at}", codes.shape, bias.qparams, value=codes),
            parts[-1], fields, value[own],
        )  # fmt: skip
    joined(graph, parts, out, 3)


def _of_channels(weight: NhwcTensor, own: slice) -> Any:
    assert weight.qparams is not None
    if len(weight.qparams.scale) == 1:
        return weight.qparams
    return type(weight.qparams)(weight.qparams.scale[own], weight.qparams.zero_point[own])


def depthwise(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """DEPTHWISE_CONV2D, whose weight is [height, width, channels, outputs of each]."""
    x, weight, bias = given
    value = _value(weight)
    _, height, width, outputs = value.shape
    lies = value.reshape(height, width, x.shape[-1], outputs // x.shape[-1])
    held = graph.tensor(f"{weight.name}.each", lies.shape, weight.qparams, value=lies)
    _convolution(graph, "DEPTHWISE_CONV2D", x, held, bias, out, fields, value.transpose(3, 1, 2, 0))


def _convolution(
    graph: TosaBuilder,
    op: str,
    x: NhwcTensor,
    weight: NhwcTensor,
    bias: NhwcTensor,
    out: NhwcTensor,
    fields: Fields,
    each: Array,
) -> None:
    # `each`: the weight with its outputs first, then the window.
    dilation = (fields["dilationHFactor"], fields["dilationWFactor"])
    window = [d * (k - 1) + 1 for d, k in zip(dilation, each.shape[1:3], strict=True)]
    x, pad = fit_windows(graph, x, window, fields, out.name)
    acc = graph.wide(f"{out.name}.sum", out.shape)
    graph.node(
        op, [x, weight, bias, *zeros(graph, qparams_of(x)[1], 0)], acc, pad=pad, stride=[fields["strideH"], fields["strideW"]],
        dilation=list(dilation), local_bound=0, acc_type=INT32,
    )  # fmt: skip
    requantized(graph, acc, x, weight, out, largest(each, bias, x), fields)


def transposed(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """TRANSPOSE_CONV2D, whose padding cuts where it is negative."""
    x, weight, bias = given
    acc = graph.wide(f"{out.name}.sum", out.shape)
    graph.node(
        "TRANSPOSE_CONV2D", [x, weight, bias, *zeros(graph, qparams_of(x)[1], 0)], acc, out_pad=fields["outPad"],
        stride=[fields["strideH"], fields["strideW"]], local_bound=0, acc_type=INT32,
    )  # fmt: skip
    requantized(graph, acc, x, weight, out, largest(_value(weight), bias, x), fields)


def linear(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """CONV2D of images of one entry."""
    x, weight, bias = given
    value = _value(weight)
    outputs, inputs = value.shape
    rows = int(np.prod(x.shape)) // inputs
    image = reshaped(graph, x, (rows, 1, 1, inputs), f"{out.name}.rows")
    lies = value.reshape(outputs, 1, 1, inputs)
    held = graph.tensor(f"{weight.name}.ohwi", lies.shape, weight.qparams, value=lies)
    acc, made = graph.wide(f"{out.name}.sum", (rows, 1, 1, outputs)), graph.inner(out, "row", (rows, 1, 1, outputs))
    graph.node(
        "CONV2D", [image, held, bias, *zeros(graph, qparams_of(x)[1], 0)], acc, pad=[0] * 4, stride=[1, 1], dilation=[1, 1],
        local_bound=0, acc_type=INT32,
    )  # fmt: skip
    requantized(graph, acc, x, weight, made, largest(value, bias, x), fields)
    reshaped(graph, made, out.shape, out)


def matmul(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """MATMUL of two tensors of one axis in front.

    Raises:
        DeployError: other axes in front that broadcast.
    """
    a, b = given
    if a.shape[:-2] != b.shape[:-2]:
        do = "Expand the smaller one, or multiply by a constant matrix."
        found = f"a product of {a.shape[1:]} and {b.shape[1:]}"
        raise DeployError(where=f"tensor {out.name!r}", found=found, wanted="the same axes in front", do=do)
    batch = int(np.prod(a.shape[:-2], dtype=int))
    flat = [reshaped(graph, h, (batch, *h.shape[-2:]), f"{out.name}.{n}") for h, n in zip(given, ("a", "b"), strict=True)]
    shape = (batch, *out.shape[-2:])
    acc, made = graph.wide(f"{out.name}.sum", shape), graph.inner(out, "flat", shape)
    graph.node("MATMUL", [*flat, *zeros(graph, qparams_of(a)[1], qparams_of(b)[1])], acc)
    assert a.qparams is not None
    pair = multiplier(scale_ratio(a.qparams, qparams_of(b)[0]) / np.float64(qparams_of(out)[0]))
    to_codes(graph, acc, made, pair, a.shape[-1] * max_magnitude(a) * max_magnitude(b), fields)
    reshaped(graph, made, out.shape, out)


def product(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """MUL of two tensors without their zero points."""
    a, b = (with_rank(graph, h, len(out.shape), f"{out.name}.{n}") for h, n in zip(given, ("a", "b"), strict=True))
    sides = [widened(graph, h, f"{out.name}.{n}.wide") for h, n in ((a, "a"), (b, "b"))]
    acc = graph.wide(f"{out.name}.product", out.shape)
    graph.node("MUL", [*sides, graph.constant(0, np.int8)], acc)
    assert a.qparams is not None
    pair = multiplier(scale_ratio(a.qparams, qparams_of(b)[0]) / np.float64(qparams_of(out)[0]))
    to_codes(graph, acc, out, pair, max_magnitude(a) * max_magnitude(b), fields)


def with_rank(graph: TosaBuilder, held: NhwcTensor, rank: int, name: str) -> NhwcTensor:
    """Return a tensor with axes of one entry in front, for TOSA broadcasts between as many axes."""
    if len(held.shape) == rank:
        return held
    return reshaped(graph, held, (*[1] * (rank - len(held.shape)), *held.shape), name)


def requantized(
    graph: TosaBuilder, acc: NhwcTensor, x: NhwcTensor, weight: NhwcTensor, out: NhwcTensor, sums: Array, fields: Fields
) -> None:
    """The codes of a sum of products with a weight."""
    assert weight.qparams is not None
    pair = multiplier(scale_ratio(weight.qparams, qparams_of(x)[0]) / np.float64(qparams_of(out)[0]))
    to_codes(graph, acc, out, pair, sums if len(pair[0]) > 1 else sums.max(), fields)


def zeros(graph: TosaBuilder, a: int, b: int) -> list[str]:
    """Return the zero points of two operands of codes."""
    return [graph.constant(z, np.int8) for z in (a, b)]


def max_magnitude(held: NhwcTensor) -> int:
    """Return the largest size of a code minus its zero point."""
    zero = qparams_of(held)[1]
    return max(127 - zero, zero + 128)


def largest(weight: Array, bias: NhwcTensor, x: NhwcTensor) -> Array:
    """For each output, the first axis, what its sum cannot exceed in size."""
    total = np.abs(weight.astype(np.float64)).reshape(weight.shape[0], -1).sum(1)
    return np.asarray(total * max_magnitude(x) + np.abs(_value(bias).astype(np.float64)))


def _value(held: NhwcTensor) -> Array:
    assert held.value is not None
    return held.value


__all__ = ["conv", "depthwise", "largest", "linear", "matmul", "with_rank", "product", "max_magnitude", "transposed", "zeros"]
