"""The table of ONNX writers: op kind -> function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from qfunc.lowering.onnx.attention import _left_out, _masked, _repeat_heads, _scaled, _sdpa
from qfunc.lowering.onnx.context import OpContext
from qfunc.lowering.onnx.creation import _arange, _cast, _full, operands
from qfunc.lowering.onnx.elementwise import (
    _LEAST,
    _binary,
    _bound,
    _clip,
    _compare,
    _floor_divide,
    _glu,
    _guard,
    _hypot,
    _lerp,
    _logic,
    _nan_to_num,
    _prelu_slope,
    _remainder,
    _round_decimals,
    _rsqrt,
    _scaled_add,
    _silu,
    _softmin,
    _softplus,
    _third,
    _threshold,
    _trunc_divide,
    _unary,
    _unary_of,
)
from qfunc.lowering.onnx.formula import Write, formula, with_attributes
from qfunc.lowering.onnx.image import _antialias, _col2im, _grid_sample, _im2col, _shuffle, _unshuffle, _windows, write_resize
from qfunc.lowering.onnx.indexing import _embedding, _gather, _index, _one_hot, _take, _triangle, _where
from qfunc.lowering.onnx.linear import _conv, _conv_transpose, _einsum, _linear, _matmul, _outer
from qfunc.lowering.onnx.normalization import (
    _cosine,
    _group_norm,
    _instance_norm,
    _layer_norm,
    _normalize,
    _response_norm,
    _rms_norm,
)
from qfunc.lowering.onnx.pooling import _adaptive_avg_pool, _adaptive_max, _global_avg_pool, _lp_pool, _pool
from qfunc.lowering.onnx.reduction import (
    _along,
    _arg,
    _cumsum,
    _difference,
    _logical,
    _mean,
    _moments,
    _reduce,
    _sort,
    _topk,
    _variance,
    _vector_norm,
)
from qfunc.lowering.onnx.shape import (
    _channel_shuffle,
    _concat,
    _flip,
    _repeat,
    _repeat_interleave,
    _roll,
    _stack,
    _tile,
    _unbind,
    over_axes,
    write_expand,
    write_flatten,
    write_pad,
    write_reshape,
    write_slice,
    write_transpose,
)

__all__ = ["SEVERAL_WRITERS", "WRITERS"]


WINDOW_WRITERS: dict[str, Write] = {"im2col": _im2col, "col2im": _col2im, "windows": _windows, "antialias": _antialias}
"""The writers of this file, by kind."""

RARE_WRITERS: dict[str, Write] = {
    "scaled_add": _scaled_add, "trunc_divide": _trunc_divide, "bound": _bound, "round_decimals": _round_decimals,
    "nan_to_num": _nan_to_num, "hypot": _hypot, "lp_pool": _lp_pool, **WINDOW_WRITERS,
    "logaddexp": formula("Sub x other; Equal x other; Where . 0 $0; Abs .; Neg .; Softplus .; Max x other; Add . $5"),
    "atan2": formula(f"Equal other 0; Where . {_LEAST} other; Div x .; Atan .; Less x 0; Where . {-math.pi} {math.pi}; "
                     "Less other 0; Where . $5 0; Add $3 ."),
    "xlogy": formula("Equal x 0; IsNaN other; Not .; And $0 .; Where . 1 other; Log .; Mul x ."),
}  # fmt: skip
"""The writers of this file, by kind."""

PLACE_WRITERS: dict[str, Callable[[OpContext], str]] = {
    "pixel_shuffle": _shuffle, "pixel_unshuffle": _unshuffle, "channel_shuffle": _channel_shuffle, "flip": _flip,
    "grid_sample": _grid_sample, "repeat_interleave": _repeat_interleave, "tile": _tile, "repeat_heads": _repeat_heads,
    "take": _take, "stack": _stack, "one_hot": _one_hot, "outer": _outer,
}  # fmt: skip
"""The writers of this file, by kind."""

REDUCE_WRITERS: dict[str, Write] = {
    "argmax": _arg("ArgMax"), "argmin": _arg("ArgMin"), "amax": _reduce("ReduceMax"), "amin": _reduce("ReduceMin"),
    "prod": _reduce("ReduceProd"), "logsumexp": _reduce("ReduceLogSumExp"), "any": _logical("ReduceMax"),
    "all": _logical("ReduceMin"), "var": _variance(False), "std": _variance(True), "vector_norm": _vector_norm,
    "normalize": _normalize, "cosine_similarity": _cosine,
}  # fmt: skip
"""The writers of this file, by kind."""

FLOAT_WRITERS: dict[str, Write] = {
    **{name: formula(f"{name.capitalize()} x") for name in ("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh",
                                                            "atanh", "ceil", "round", "sign", "selu", "softsign")},
    "isnan": formula("IsNaN x"), "isinf": formula("IsInf x"), "log1p": formula("Add x 1; Log ."),
    "expm1": formula("Exp x; Sub . 1"), "log2": formula(f"Log x; Div . {math.log(2)}"),
    "log10": formula(f"Log x; Div . {math.log(10)}"), "exp2": formula(f"Mul x {math.log(2)}; Exp ."),
    "square": formula("Pow x 2"), "trunc": formula("Abs x; Floor .; Sign x; Mul $1 $2"),
    "frac": formula("Abs x; Floor .; Sign x; Mul $1 $2; Sub x ."), "erfc": formula("Erf x; Neg .; Add . 1"),
    "celu": with_attributes("Celu", alpha="alpha"),
    "softshrink": with_attributes("Shrink", lambd="lambd", bias="lambd"),
    "hardshrink": with_attributes("Shrink", lambd="lambd", bias=0.0),
    "tanhshrink": formula("Tanh x; Sub x ."), "log_sigmoid": formula("Neg x; Softplus .; Neg ."),
    "softplus": _softplus,
    "threshold": _threshold, "glu": _glu, "softmin": _softmin, "einsum": _einsum, "floor_divide": _floor_divide,
    "remainder": _remainder, "fmod": lambda c: c.write("Mod", c.input(), c.input("other"), fmod=1),
    "local_response_norm": _response_norm, "adaptive_max_pool": _adaptive_max, "instance_norm": _instance_norm,
    "scale": _scaled, "mask": _masked, "left_out": _left_out, "guard": _guard,
    "addcmul": _third("Mul"), "addcdiv": _third("Div"),
    "lerp": _lerp, **REDUCE_WRITERS, **PLACE_WRITERS, **RARE_WRITERS,
}  # fmt: skip
"""The writers of this file and of those three, by kind."""

INDEX_WRITERS: dict[str, Callable[[OpContext], Any]] = {
    "compare": _compare, "logic": _logic, "cast": _cast, "where": _where, "cumsum": _cumsum, "tril": _triangle(0),
    "not": lambda c: c.write("Not", *operands(c, torch.bool, "value")),
    "difference": _difference,
    "detach": _unary_of("Identity"), "triu": _triangle(1), "index": _index, "gather": _gather,
    "roll": _roll, "repeat": _repeat, "arange": _arange,
    "full": _full, "rms_norm": _rms_norm, "sin": _unary_of("Sin"), "cos": _unary_of("Cos"), "log": _unary_of("Log"),
    "erf": _unary_of("Erf"), "floor": _unary_of("Floor"), "reciprocal": _unary_of("Reciprocal"),
}  # fmt: skip
"""The writers of this file, by kind."""

WRITERS: dict[str, Callable[[OpContext], str]] = {
    "conv": _conv, "conv_transpose": _conv_transpose, "linear": _linear, "matmul": _matmul, "add": _binary("Add"),
    "sub": _binary("Sub"), "mul": _binary("Mul"), "div": _binary("Div"), "pow": _binary("Pow"), "minimum": _binary("Min"),
    "maximum": _binary("Max"), "concat": _concat, "max_pool": _pool("MaxPool"), "avg_pool": _pool("AveragePool"),
    "global_avg_pool": _global_avg_pool, "adaptive_avg_pool": _adaptive_avg_pool, "relu": _unary("Relu"), "clip": _clip,
    "leaky_relu": lambda c: c.write("LeakyRelu", c.input(), alpha=float(c["negative_slope"])),
    "prelu": lambda c: c.write("PRelu", c.input(), _prelu_slope(c)), "sigmoid": _unary("Sigmoid"), "tanh": _unary("Tanh"),
    "gelu": lambda c: c.write("Gelu", c.input(), approximate=c["approximate"]), "silu": _silu, "hardswish": _unary("HardSwish"),
    "hardsigmoid": _unary("HardSigmoid", alpha=1 / 6, beta=0.5),
    "elu": lambda c: c.write("Elu", c.input(), alpha=float(c["alpha"])),
    "mish": _unary("Mish"),
    "softmax": lambda c: c.write("Softmax", c.input(), axis=c["dim"]),
    "log_softmax": lambda c: c.write("LogSoftmax", c.input(), axis=c["dim"]),
    "layer_norm": _layer_norm, "group_norm": _group_norm,
    "embedding": _embedding, "sdpa": _sdpa, "reshape": write_reshape, "flatten": write_flatten, "transpose": write_transpose,
    "squeeze": over_axes("Squeeze"), "unsqueeze": over_axes("Unsqueeze"), "slice": write_slice, "expand": write_expand,
    "pad": write_pad,
    "resize": write_resize, "mean": _mean("ReduceMean"), "sum": _mean("ReduceSum"), "exp": _unary("Exp"),
    "sqrt": _unary("Sqrt"),
    "rsqrt": _rsqrt, "neg": _unary("Neg"), "abs": _unary("Abs"), **INDEX_WRITERS, **FLOAT_WRITERS,
}  # fmt: skip

SEVERAL_WRITERS: dict[str, Callable[[OpContext], list[str]]] = {
    "topk": _topk, "sort": _sort, "max": _along("Max"), "min": _along("Min"), "unbind": _unbind,
    "var_mean": _moments(False), "std_mean": _moments(True),
}  # fmt: skip
"""Writers of ops with several results: the name of each."""
