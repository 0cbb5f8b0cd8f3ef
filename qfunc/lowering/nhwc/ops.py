"""The writer of each ONNX op in a .tflite; GELU, and ops that are written as several TFLite operators in float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from qfunc.lowering.nhwc.context import OpContext, node_writer
from qfunc.lowering.nhwc.elementwise import binary, bounded, hard_swish, leaky_relu, prelu, softmax, unary
from qfunc.lowering.nhwc.formulas import CURVES, elu
from qfunc.lowering.nhwc.linear import conv, conv_transposed, gemm, matmul, run_time
from qfunc.lowering.nhwc.masks import cast
from qfunc.lowering.nhwc.moves import depth_to_space, gather, pad, resize, space_to_depth, tile, where
from qfunc.lowering.nhwc.norms import group_norm, instance_norm, response_norm
from qfunc.lowering.nhwc.pooling import (
    average_pool,
    global_average_pool,
    global_max_pool,
    log_sum_exp,
    max_pool,
    position,
    reduced,
    reduced_terms,
)
from qfunc.lowering.nhwc.shape import concat, expand, reshape, sliced, split, transpose
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.nhwc.writer import Writer


def _gelu(step: OpContext) -> None:
    """Write GELU, by the error function or by tanh."""
    unary("GELU", "GeluOptions", approximate=step.attribute("approximate", b"none") == b"tanh")(step)


def _celu(step: OpContext) -> None:
    """Write max(0, x) + alpha (exp(min(0, x) / alpha) - 1), to within alpha 2^-22. Values above 0 are exact.

    TFLite's ELU has no alpha, and LiteRT's reference kernels have no ELU.
    """
    x, alpha = step.input(), float(step.attribute("alpha", 1.0))
    below, curve, above = (step.inner(n, x.shape, x, last=x.last) for n in ("below", "curve", "above"))
    step.file.operator("MINIMUM", [x, _number(step, "zero", 0.0)], [below], "MaximumMinimumOptions")
    step.file.operator("EXP", [_binary(step, "MUL", below, _number(step, "rate", 1 / alpha), "scaled", x)], [curve])
    lowered = _binary(step, "SUB", curve, _number(step, "one", 1.0), "lowered", x)
    negative = _binary(step, "MUL", lowered, _number(step, "alpha", alpha), "negative", x)
    step.file.operator("RELU", [x], [above])
    output = step.result(x.shape, last=x.last)
    step.file.operator("ADD", [above, negative], [output], "AddOptions", fusedActivationFunction="NONE")


def _hard_sigmoid(step: OpContext) -> None:
    """Write max(0, min(1, alpha x + beta)): a product, a sum, and two bounds."""
    x = step.input()
    alpha, beta = (_number(step, n, float(step.attribute(n, d))) for n, d in (("alpha", 0.2), ("beta", 0.5)))
    sloped = _binary(step, "MUL", x, alpha, "sloped", x)
    raised = _binary(step, "ADD", sloped, beta, "raised", x)
    positive = step.inner("positive", x.shape, x, last=x.last)
    step.file.operator("RELU", [raised], [positive])
    output = step.result(x.shape, last=x.last)
    step.file.operator("MINIMUM", [positive, _number(step, "one", 1.0)], [output], "MaximumMinimumOptions")


def _layer_norm(step: OpContext) -> None:
    """Write (x - mean) * rsqrt(mean((x - mean)^2) + epsilon) * scale + bias, over the last axes."""
    x = step.writer.plain(step.input())
    rank = len(x.shape)
    axes = list(range(int(step.attribute("axis", -1)) % rank, rank))
    axes_tensor = step.file.integers(axes, f"{step.name}.axes")
    mean, variance = (_reduced(step, n, x, axes) for n in ("mean", "variance"))
    step.file.operator("MEAN", [x, axes_tensor], [mean], "ReducerOptions", keepDims=True)
    square = step.inner("square", x.shape, x)
    step.file.operator("SQUARED_DIFFERENCE", [x, mean], [square], "SquaredDifferenceOptions")
    step.file.operator("MEAN", [square, axes_tensor], [variance], "ReducerOptions", keepDims=True)
    epsilon = _number(step, "epsilon", float(step.attribute("epsilon", 1e-5)))
    wide = _binary(step, "ADD", variance, epsilon, "wide", variance)
    inverse = step.inner("inverse", variance.shape, variance)
    step.file.operator("RSQRT", [wide], [inverse])
    value = _binary(step, "MUL", _binary(step, "SUB", x, mean, "centred", x), inverse, "normal", x)
    parts = [("MUL", "scaled", 1)] + [("ADD", "shifted", 2)] * (len(step.node.input) > 2)
    for op, name, index in parts[:-1]:
        value = _binary(step, op, value, step.input(index), name, x)
    op, _, index = parts[-1]
    none = "NONE"
    output, last = step.result(x.shape), step.input(index)
    step.file.operator(op, [value, last], [output], f"{op.capitalize()}Options", fusedActivationFunction=none)


def _reduced(step: OpContext, name: str, x: NhwcTensor, axes: list[int]) -> NhwcTensor:
    return step.inner(name, [1 if i in axes else n for i, n in enumerate(x.shape)], x)


def _number(step: OpContext, name: str, value: float) -> NhwcTensor:
    return step.file.tensor(f"{step.name}.{name}", (1,), value=np.array([value], np.float32))


def _binary(step: OpContext, op: str, a: NhwcTensor, b: NhwcTensor, name: str, like: NhwcTensor) -> NhwcTensor:
    output = step.inner(name, like.shape, like, last=like.last)
    fields = {"fusedActivationFunction": "NONE"}
    step.file.operator(op, [a, b], [output], f"{op.capitalize()}Options", **fields)
    return output


_STEPS: dict[str, Callable[[OpContext], None]] = {
    "DynamicQuantize": run_time, "Conv": conv, "ConvTranspose": conv_transposed, "Gemm": gemm, "MatMul": matmul,
    "Add": binary("ADD", "AddOptions"), "Sub": binary("SUB", "SubOptions"), "Mul": binary("MUL", "MulOptions"),
    "Div": binary("DIV", "DivOptions", codes=False), "Pow": binary("POW", "PowOptions", codes=False),
    "Min": binary("MINIMUM", "MaximumMinimumOptions", codes=False),
    "Max": binary("MAXIMUM", "MaximumMinimumOptions", codes=False),
    "MaxPool": max_pool, "AveragePool": average_pool, "GlobalAveragePool": global_average_pool,
    "GlobalMaxPool": global_max_pool,
    "ReduceMean": reduced("MEAN"), "ReduceSum": reduced("SUM"),
    "ReduceMax": reduced("REDUCE_MAX"), "ReduceMin": reduced("REDUCE_MIN"), "ReduceProd": reduced("REDUCE_PROD"),
    "ReduceL1": reduced_terms(lambda f, x: f("ABS", x), lambda f, total, into: f("ADD", total, 0.0, into=into)),
    "ReduceL2": reduced_terms(lambda f, x: f("MUL", x, x), lambda f, total, into: f("SQRT", total, into=into)),
    "ReduceSumSquare": reduced_terms(lambda f, x: f("MUL", x, x), lambda f, total, into: f("ADD", total, 0.0, into=into)),
    "ReduceLogSumExp": log_sum_exp, "ArgMax": position("ARG_MAX"), "ArgMin": position("ARG_MIN"),
    "Relu": bounded, "Clip": bounded, "LeakyRelu": leaky_relu, "PRelu": prelu,
    "Sigmoid": unary("LOGISTIC"), "Tanh": unary("TANH"), "HardSwish": hard_swish,
    "Gelu": _gelu, "Elu": elu, "Celu": _celu, "HardSigmoid": _hard_sigmoid, "LayerNormalization": _layer_norm, "Gather": gather,
    "Cast": cast,
    "Exp": unary("EXP", codes=False), "Sqrt": unary("SQRT", codes=False), "Neg": unary("NEG", codes=False),
    "Abs": unary("ABS", codes=False), "Log": unary("LOG", codes=False), "Sin": unary("SIN", codes=False),
    "Cos": unary("COS", codes=False), "Floor": unary("FLOOR", codes=False), "Ceil": unary("CEIL", codes=False),
    "Round": unary("ROUND", codes=False), **CURVES,
    "GroupNormalization": group_norm, "InstanceNormalization": instance_norm, "LRN": response_norm,
    "Softmax": softmax("SOFTMAX", "SoftmaxOptions", beta=1.0), "LogSoftmax": softmax("LOG_SOFTMAX"),
    "Reshape": reshape, "Flatten": reshape, "Squeeze": reshape, "Unsqueeze": reshape, "Transpose": transpose,
    "Slice": sliced, "Split": split, "Concat": concat, "Pad": pad, "Resize": resize, "Expand": expand,
    "Tile": tile, "DepthToSpace": depth_to_space, "SpaceToDepth": space_to_depth, "Where": where,
}  # fmt: skip
WRITERS: dict[str, Callable[[Writer, onnx.NodeProto], None]] = {op: node_writer(write) for op, write in _STEPS.items()}
"""The writer of each op, by the type of the node."""
