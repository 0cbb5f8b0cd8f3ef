"""How each op of the vocabulary is written in ONNX: one small function a kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from qfunc.errors import DeployError
from qfunc.graph.index_ops import dense
from qfunc.lowering.onnx_call import Call, known, normalized
from qfunc.lowering.onnx_float import FLOAT_WRITERS
from qfunc.lowering.onnx_index import INDEX_WRITERS, operands
from qfunc.lowering.onnx_moves import (
    over_axes,
    write_expand,
    write_flatten,
    write_pad,
    write_reshape,
    write_resize,
    write_slice,
    write_transpose,
)
from qfunc.lowering.onnx_sizes import causal, shape_operand


def _each(value: Any, rank: int) -> list[int]:
    return [int(value)] * rank if isinstance(value, int) else [int(v) for v in (list(value) * rank)[:rank]]


def _conv(c: Call) -> str:
    rank = len(c.shapes[c["weight"].name].dims) - 2
    dilation, kernel = _each(c["dilation"], rank), list(c.shapes[c["weight"].name].dims[2:])
    attributes: dict[str, Any] = {
        "strides": _each(c["stride"], rank),
        "dilations": dilation,
        "group": c["groups"],
        "kernel_shape": kernel,
    }
    if isinstance(c["padding"], str):
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        if c["padding"] == "same":
            attributes["pads"] = [t // 2 for t in total] + [t - t // 2 for t in total]
    else:
        attributes["pads"] = _each(c["padding"], rank) * 2
    return c.write("Conv", c.input(), *_weights(c), **attributes)


def _weights(c: Call) -> list[str]:
    return [c.input(p) for p in ("weight", "bias") if isinstance(c[p], fx.Node)]


def _conv_transpose(c: Call) -> str:
    rank = len(c.shapes[c["weight"].name].dims) - 2
    return c.write(
        "ConvTranspose", c.input(), *_weights(c), strides=_each(c["stride"], rank), pads=_each(c["padding"], rank) * 2,
        output_padding=_each(c["output_padding"], rank), group=c["groups"], dilations=_each(c["dilation"], rank),
    )  # fmt: skip


def _linear(c: Call) -> str:
    transposed = 0 if c.node.target is dense else 1
    if c.shape().rank == 2:
        return c.write("Gemm", c.input(), *_weights(c), transB=transposed)
    # Gemm is of rank 2: rows in, rows out, and the shape back, on codes where the unit has them.
    g, k = c.graph, c.shape().dims[-1]
    rows = c.between(
        g.node("Reshape", [c.input(), g.integers(-1, known(c, k), name=f"{c.name}.rows_shape")], f"{c.name}.rows_in"), "before"
    )
    product = c.between(g.node("Gemm", [rows, *_weights(c)], f"{c.name}.rows", transB=transposed), "after")
    return c.write("Reshape", product, shape_operand(c, f"{c.name}.shape"))


def _matmul(c: Call) -> str:
    return c.write("MatMul", c.input(), c.input("other"))


def _binary(op: str) -> Callable[[Call], str]:
    second = {"Pow": "exponent"}.get(op, "other")
    return lambda c: c.write(op, *operands(c, c.result.dtype, "input", second))


def _unary(op: str, **attributes: Any) -> Callable[[Call], str]:
    return lambda c: c.write(op, c.input(), **attributes)


def _concat(c: Call) -> str:
    return c.write("Concat", *(c.read(n) for n in c["tensors"]), axis=c["dim"])


def _pool(op: str) -> Callable[[Call], str]:
    def write(c: Call) -> str:
        rank = c.shape().rank - 2
        kernel, pads = _each(c["kernel_size"], rank), _each(c["padding"], rank) * 2
        attributes: dict[str, Any] = {
            "kernel_shape": kernel,
            "strides": _each(c["stride"], rank),
            "pads": pads,
            "ceil_mode": int(c["ceil_mode"]),
        }
        if op == "MaxPool":
            attributes["dilations"] = _each(c["dilation"], rank)
        else:
            attributes["count_include_pad"] = int(c["count_include_pad"])
            if c.takes("divisor_override") and c["divisor_override"]:
                pooled = c.graph.node(op, [c.input()], f"{c.name}.mean", **attributes)
                return c.write("Mul", pooled, c.graph.number(math.prod(kernel) / c["divisor_override"], f"{c.name}.factor"))
        return c.write(op, c.input(), **attributes)

    return write


def _global_avg_pool(c: Call) -> str:
    if c.shape().rank != 4:
        return _reduced(c, "ReduceMean", (-2, -1), c["keepdim"])
    if c["keepdim"]:
        return c.write("GlobalAveragePool", c.input())
    pooled = c.between(c.graph.node("GlobalAveragePool", [c.input()], f"{c.name}.pooled"), "after")
    return c.write("Squeeze", pooled, c.graph.integers(2, 3, name=f"{c.name}.axes"))


def _adaptive_avg_pool(c: Call) -> str:
    rank, source = c.shape().rank - 2, c.shape().dims
    out = c.result.dims[2:]
    if any(not s or not o or s % o for s, o in zip(source[2:], out, strict=True)):
        do = "Resize the input, or pool to a divisor of its size."
        raise DeployError(
            where=f"op {c.name!r}", found=f"adaptive pooling of {source[2:]} to {out}", wanted="whole windows", do=do
        )
    kernel = [int(s) // int(o) for s, o in zip(source[2:], out, strict=True)]  # type: ignore[arg-type]
    return c.write("AveragePool", c.input(), kernel_shape=kernel, strides=kernel, pads=[0] * 2 * rank)


def _clip(c: Call) -> str:
    bounds = ["" if c[p] is None else c.graph.number(float(c[p]), f"{c.name}.{p}") for p in ("min", "max")]
    return c.write("Clip", c.input(), *bounds)


def _silu(c: Call) -> str:
    return c.write("Mul", c.input(), c.graph.node("Sigmoid", [c.input()], f"{c.name}.sigmoid"))


def _mean(op: str) -> Callable[[Call], str]:
    def write(c: Call) -> str:
        given = tuple(range(c.shape().rank)) if c["dim"] is None else c["dim"]
        axes = given if isinstance(given, list | tuple) else (given,)
        return _reduced(c, op, axes, c["keepdim"])

    return write


def _reduced(c: Call, op: str, axes: Sequence[int], keepdim: bool) -> str:
    if op == "ReduceMean" and c.graph.opset < 18:  # its axes became an input with opset 18, those of ReduceSum with 13
        return c.write(op, c.input(), axes=list(axes), keepdims=int(keepdim))
    return c.write(op, c.input(), c.graph.integers(*axes, name=f"{c.name}.axes"), keepdims=int(keepdim))


def _rsqrt(c: Call) -> str:
    return c.write("Reciprocal", c.graph.node("Sqrt", [c.input()], f"{c.name}.sqrt"))


def _layer_norm(c: Call) -> str:
    axes = normalized(c)
    bias = [c.input("bias")] if c["bias"] is not None else []
    if c["weight"] is not None:
        scale = c.input("weight")
    else:
        scale = c.graph.constant(np.ones([known(c, n) for n in c.shape().dims[-axes:]], np.float32), f"{c.name}.ones")
    return c.write("LayerNormalization", c.input(), scale, *bias, axis=-axes, epsilon=float(c["eps"]))


def _group_norm(c: Call) -> str:
    channels = known(c, c.shape().dims[1])
    given = [c.input(p) if c[p] is not None else c.graph.constant(np.full(channels, fill, np.float32), f"{c.name}.{p}")
             for p, fill in (("weight", 1), ("bias", 0))]  # fmt: skip
    return c.write("GroupNormalization", c.input(), *given, num_groups=int(c["num_groups"]), epsilon=float(c["eps"]))


def _embedding(c: Call) -> str:
    return c.write("Gather", c.input("weight"), c.input("indices"), axis=0)


def _sdpa(c: Call) -> str:
    g, name = c.graph, c.name
    rank, width = c.shape("query").rank, known(c, c.shape("query").dims[-1])
    order = [*range(rank - 2), rank - 1, rank - 2]
    scores = g.node(
        "MatMul", [c.input("query"), g.node("Transpose", [c.input("key")], f"{name}.key", perm=order)], f"{name}.product"
    )
    scores = g.node("Mul", [scores, g.number(1 / math.sqrt(width), f"{name}.factor")], f"{name}.scores")
    if c["is_causal"]:
        op, operands = causal(c, scores, [c.shape(p).dims[-2] for p in ("query", "key")])
        scores = g.node(op, operands, f"{name}.masked")
    elif c["attn_mask"] is not None:
        mask_name = c.input("attn_mask")
        if c.shape("attn_mask").dtype == torch.bool:
            limits = [g.number(v, f"{name}.{n}") for v, n in ((0.0, "keep"), (-math.inf, "drop"))]
            mask_name = g.node("Where", [mask_name, *limits], f"{name}.mask")
        scores = g.node("Add", [scores, mask_name], f"{name}.masked")
    return c.write("MatMul", g.node("Softmax", [scores], f"{name}.weights", axis=-1), c.input("value"))


WRITERS: dict[str, Callable[[Call], str]] = {
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


def _prelu_slope(c: Call) -> str:
    # ONNX broadcasts from the right, torch along the channels.
    axes = list(range(1, c.shape().rank - 1))
    slope = c.input("weight")
    if not axes or c.shapes[c["weight"].name].dims == (1,):
        return slope
    return c.graph.node("Unsqueeze", [slope, c.graph.integers(*axes, name=f"{c.name}.axes")], f"{c.name}.slope")


def write_norm(c: Call, kind: str) -> str:
    """BatchNorm and InstanceNorm modules that could not be folded."""
    module: Any = c.module
    channels = int(module.num_features)
    weight = torch.ones(channels) if module.weight is None else module.weight
    bias = torch.zeros(channels) if module.bias is None else module.bias
    held = [c.graph.constant(t, f"{c.name}.{n}") for t, n in ((weight, "weight"), (bias, "bias"))]
    source = c.read(c.node.args[0])  # type: ignore[arg-type]
    if kind == "batch_norm" and module.running_mean is None:
        do = "Train with track_running_stats=True, or put nn.GroupNorm or nn.InstanceNorm in its place."
        raise DeployError(where=f"op {c.name!r}", found="a BatchNorm without running statistics", wanted="constants", do=do)
    if kind == "instance_norm" and module.running_mean is None:
        return c.write("InstanceNormalization", source, *held, epsilon=float(module.eps))
    stats = [c.graph.constant(getattr(module, n), f"{c.name}.{n}") for n in ("running_mean", "running_var")]
    return c.write("BatchNormalization", source, *held, *stats, epsilon=float(module.eps))


__all__ = ["WRITERS", "write_norm"]
