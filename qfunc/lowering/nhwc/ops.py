"""The writer of each ONNX op in a .tflite."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from qfunc.lowering.nhwc.context import OpContext, node_writer
from qfunc.lowering.nhwc.decompositions import celu, gelu, hard_sigmoid, layer_norm
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
from qfunc.lowering.nhwc.writer import Writer

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
    "Gelu": gelu, "Elu": elu, "Celu": celu, "HardSigmoid": hard_sigmoid, "LayerNormalization": layer_norm, "Gather": gather,
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

__all__ = ["WRITERS"]
