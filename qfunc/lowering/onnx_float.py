"""How ops that compute in float are written in ONNX."""

from __future__ import annotations

import math

import numpy as np
import torch

from qfunc.errors import DeployError
from qfunc.graph.float_ops import guarded
from qfunc.lowering.onnx_call import Call, known
from qfunc.lowering.onnx_formula import Write, formula, with_attributes
from qfunc.lowering.onnx_places import PLACE_WRITERS
from qfunc.lowering.onnx_rare import RARE_WRITERS
from qfunc.lowering.onnx_reduce import REDUCE_WRITERS
from qfunc.lowering.onnx_sizes import causal


def _binary(op: str, last: str = "") -> Write:
    def write(c: Call) -> str:
        value = c.graph.node(op, [c.input(), c.input("other")], f"{c.name}.{op.lower()}" if last else c.name)
        return c.write(last, value) if last else value

    return write


def _floor_divide(c: Call) -> str:
    if c.result.dtype.is_floating_point:
        return _binary("Div", "Floor")(c)
    g = c.graph  # integers of ONNX divide towards zero
    real = [g.node("Cast", [c.input(p)], f"{c.name}.{p}.real", to=11) for p in ("input", "other")]
    return c.write("Cast", g.node("Floor", [g.node("Div", real, f"{c.name}.div")], f"{c.name}.floor"), to=_element(c))


def _element(c: Call) -> int:
    return {torch.int64: 7, torch.int32: 6, torch.float32: 1}.get(c.result.dtype, 7)


def _remainder(c: Call) -> str:
    if not c.result.dtype.is_floating_point:
        return c.write("Mod", c.input(), c.input("other"))
    g = c.graph
    whole = g.node("Floor", [g.node("Div", [c.input(), c.input("other")], f"{c.name}.div")], f"{c.name}.floor")
    return c.write("Sub", c.input(), g.node("Mul", [whole, c.input("other")], f"{c.name}.multiple"))


def _threshold(c: Call) -> str:
    g = c.graph
    over = g.node("Greater", [c.input(), g.number(float(c["threshold"]), f"{c.name}.threshold")], f"{c.name}.over")
    apart = g.node("Max", [c.input()], f"{c.name}.float")  # a copy: ONNX Runtime would quantize a Where of numbers by itself
    return c.write("Where", over, apart, g.number(float(c["value"]), f"{c.name}.value"))


def _softplus(c: Call) -> str:
    # log(1 + exp(beta x)) / beta, and x where beta x is above the threshold: from 20 on both are one float32.
    g, x, beta, threshold = c.graph, c.input(), float(c["beta"]), float(c["threshold"])
    if beta == 1 and threshold >= 20:
        return c.write("Softplus", x)
    factor = g.number(beta, f"{c.name}.beta")
    scaled = g.node("Mul", [x, factor], f"{c.name}.scaled")
    curve = [g.node("Softplus", [scaled], f"{c.name}.curve"), factor]
    if threshold >= 20:
        return c.write("Div", *curve)
    over = g.node("Greater", [scaled, g.number(threshold, f"{c.name}.threshold")], f"{c.name}.over")
    return c.write("Where", over, x, g.node("Div", curve, f"{c.name}.below"))


def _glu(c: Call) -> str:
    names = [f"{c.name}.{n}" for n in ("value", "gate")]
    value, gate = c.graph.many("Split", [c.input()], names, axis=c["dim"], num_outputs=2 if c.graph.opset >= 18 else None)
    return c.write("Mul", value, c.graph.node("Sigmoid", [gate], f"{c.name}.sigmoid"))


def _softmin(c: Call) -> str:
    return c.write("Softmax", c.graph.node("Neg", [c.input()], f"{c.name}.neg"), axis=c["dim"])


def _einsum(c: Call) -> str:
    return c.write("Einsum", *(c.read(n) for n in c["operands"]), equation=c["equation"])


def _response_norm(c: Call) -> str:
    return c.write("LRN", c.input(), size=c["size"], alpha=float(c["alpha"]), beta=float(c["beta"]), bias=float(c["k"]))


def _adaptive_max(c: Call) -> str:
    out, source = c.result.dims[2:], c.shape().dims[2:]
    if all(o == 1 for o in out):
        return c.write("GlobalMaxPool", c.input())
    if any(not s or not o or s % o for s, o in zip(source, out, strict=True)):
        do = "Resize the input, or pool to a divisor of its size."
        raise DeployError(where=f"op {c.name!r}", found=f"adaptive pooling of {source} to {out}", wanted="whole windows", do=do)
    kernel = [int(s) // int(o) for s, o in zip(source, out, strict=True)]  # type: ignore[arg-type]
    return c.write("MaxPool", c.input(), kernel_shape=kernel, strides=kernel)


def _instance_norm(c: Call) -> str:
    if not c["use_input_stats"]:
        do = "Use nn.BatchNorm, or use_input_stats=True."
        raise DeployError(where=f"op {c.name!r}", found="running statistics", wanted="those of the input", do=do)
    channels = known(c, c.shape().dims[1])
    given = [c.input(p) if c[p] is not None else c.graph.constant(np.full(channels, fill, np.float32), f"{c.name}.{p}")
             for p, fill in (("weight", 1), ("bias", 0))]  # fmt: skip
    return c.write("InstanceNormalization", c.input(), *given, epsilon=float(c["eps"]))


def _scaled(c: Call) -> str:
    factor = known(c, c.shape("like").dims[-1]) ** -0.5 if c["factor"] is None else float(c["factor"])
    return c.write("Mul", c.input(), c.graph.number(factor, f"{c.name}.factor"))


def _guard(c: Call) -> str:
    sum_or_max = "Add" if c.node.target is guarded else "Max"
    return c.write(sum_or_max, c.input(), c.graph.number(float(c["least"]), f"{c.name}.least"))


def _masked(c: Call) -> str:
    g, low = c.graph, -math.inf
    if c["causal"]:
        op, operands = causal(c, c.input(), c.shape().dims[-2:])
        return c.write(op, *operands)
    if c["mask"] is None:
        return c.write("Identity", c.input())
    if c.shape("mask").dtype == torch.bool:
        return c.write("Where", c.input("mask"), c.input(), g.number(low, f"{c.name}.drop"))
    return c.write("Add", c.input(), c.input("mask"))


def _third(op: str) -> Write:
    def write(c: Call) -> str:
        changed = c.graph.node(op, [c.input("tensor1"), c.input("tensor2")], f"{c.name}.{op.lower()}")
        factor = c.graph.number(float(c["value"]), f"{c.name}.value")
        return c.write("Add", c.input(), c.graph.node("Mul", [changed, factor], f"{c.name}.scaled"))

    return write


def _lerp(c: Call) -> str:
    apart = c.graph.node("Sub", [c.input("end"), c.input()], f"{c.name}.apart")
    return c.write("Add", c.input(), c.graph.node("Mul", [apart, c.input("weight")], f"{c.name}.part"))


def _left_out(c: Call) -> str:
    return c.write("Not" if c.shape("mask").dtype == torch.bool else "Identity", c.input("mask"))


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
