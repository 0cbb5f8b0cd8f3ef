"""The writer of each ONNX op as layers of ncnn."""

from __future__ import annotations

from collections.abc import Callable

from qfunc.targets.ncnn.elementwise import (
    binary, cast, celu, clip, elu, gelu, hard_sigmoid, leaky_relu, power, prelu, selu, shrink, softmax, softplus, softsign,
    unary,
)  # fmt: skip
from qfunc.targets.ncnn.indexing import gather, sliced, split, where
from qfunc.targets.ncnn.linear import conv, deconv, gemm, matmul
from qfunc.targets.ncnn.normalization import group_norm, instance_norm, layer_norm
from qfunc.targets.ncnn.pooling import (
    average_pool, cumulative_sum, global_average_pool, global_max_pool, log_softmax, log_sum_exp, max_pool, position, reduced,
)  # fmt: skip
from qfunc.targets.ncnn.recurrent import GRU, LSTM, RNN
from qfunc.targets.ncnn.shape import (
    concat, depth_to_space, expand, pad, reshape, resize, space_to_depth, tile, transpose,
)  # fmt: skip
from qfunc.targets.ncnn.writer import OpContext

WRITERS: dict[str, Callable[[OpContext], None]] = {
    "Conv": conv, "ConvTranspose": deconv, "Gemm": gemm, "MatMul": matmul,
    "Add": binary(0, 0), "Sub": binary(1, 7), "Mul": binary(2, 2), "Div": binary(3, 8), "Max": binary(4, 4),
    "Min": binary(5, 5), "Pow": power,
    "MaxPool": max_pool, "AveragePool": average_pool, "GlobalAveragePool": global_average_pool,
    "GlobalMaxPool": global_max_pool,
    "ReduceMean": reduced(3), "ReduceSum": reduced(0), "ReduceSumSquare": reduced(2), "ReduceL1": reduced(7),
    "ReduceL2": reduced(8), "ReduceMax": reduced(4), "ReduceMin": reduced(5), "ReduceProd": reduced(6),
    "ReduceLogSumExp": log_sum_exp, "ArgMax": position(1), "ArgMin": position(-1), "CumSum": cumulative_sum,
    "Relu": unary("ReLU"), "Clip": clip, "LeakyRelu": leaky_relu, "PRelu": prelu, "Elu": elu, "Gelu": gelu,
    "Sigmoid": unary("Sigmoid"), "Tanh": unary("TanH"), "HardSwish": unary("HardSwish", p0=1 / 6, p1=0.5),
    "HardSigmoid": hard_sigmoid, "Mish": unary("Mish"), "Celu": celu, "Softplus": softplus, "Softsign": softsign,
    "Abs": unary("UnaryOp", p0=0), "Neg": unary("UnaryOp", p0=1), "Sqrt": unary("UnaryOp", p0=5),
    "Exp": unary("UnaryOp", p0=7), "Reciprocal": unary("UnaryOp", p0=15), "Log": unary("UnaryOp", p0=8),
    "Floor": unary("UnaryOp", p0=2), "Ceil": unary("UnaryOp", p0=3), "Round": unary("UnaryOp", p0=18),
    "Sin": unary("UnaryOp", p0=9), "Cos": unary("UnaryOp", p0=10), "Atan": unary("UnaryOp", p0=14), "Selu": selu,
    "Tan": unary("UnaryOp", p0=11), "Asin": unary("UnaryOp", p0=12), "Acos": unary("UnaryOp", p0=13),
    "Sign": unary("UnaryOp", p0=20), "Erf": unary("Erf"),
    "Sinh": unary("UnaryOp", p0=22), "Asinh": unary("UnaryOp", p0=23), "Cosh": unary("UnaryOp", p0=24),
    "Acosh": unary("UnaryOp", p0=25), "Atanh": unary("UnaryOp", p0=26), "Shrink": shrink,
    "Where": where, "Cast": cast,
    "Softmax": softmax, "LogSoftmax": log_softmax, "LayerNormalization": layer_norm, "GroupNormalization": group_norm,
    "InstanceNormalization": instance_norm,
    "LSTM": LSTM, "GRU": GRU, "RNN": RNN,
    "Reshape": reshape, "Flatten": reshape, "Squeeze": reshape, "Unsqueeze": reshape, "Transpose": transpose,
    "Expand": expand, "Tile": tile, "DepthToSpace": depth_to_space, "SpaceToDepth": space_to_depth,
    "Slice": sliced, "Split": split, "Gather": gather, "Concat": concat, "Pad": pad, "Resize": resize,
}  # fmt: skip
"""The writer of each op, by the type of the node."""
