"""Write elementwise ops as ONNX: arithmetic, activations, comparison, logic."""

from __future__ import annotations

import math

import numpy as np
import torch

from qfunc.errors import DeployError
from qfunc.lowering.onnx.builder import element_type
from qfunc.lowering.onnx.context import OpContext
from qfunc.lowering.onnx.creation import operand, operands, promoted
from qfunc.lowering.onnx.formula import Write, formula
from qfunc.ops.arithmetic import guarded


def _floor_divide(c: OpContext) -> str:
    if c.result.dtype.is_floating_point:
        return formula("Div x other; Floor .")(c)
    g = c.graph  # ONNX divides integers towards zero
    real = [g.node("Cast", [c.input(p)], f"{c.name}.{p}.real", to=11) for p in ("input", "other")]
    return c.write("Cast", g.node("Floor", [g.node("Div", real, f"{c.name}.div")], f"{c.name}.floor"), to=_integer_type(c))


def _remainder(c: OpContext) -> str:
    if not c.result.dtype.is_floating_point:
        return c.write("Mod", c.input(), c.input("other"))
    g = c.graph
    floor = g.node("Floor", [g.node("Div", [c.input(), c.input("other")], f"{c.name}.div")], f"{c.name}.floor")
    return c.write("Sub", c.input(), g.node("Mul", [floor, c.input("other")], f"{c.name}.multiple"))


def _threshold(c: OpContext) -> str:
    g = c.graph
    over = g.node("Greater", [c.input(), g.number(float(c["threshold"]), f"{c.name}.threshold")], f"{c.name}.over")
    difference = g.node("Max", [c.input()], f"{c.name}.float")  # a copy: ONNX Runtime would quantize a Where of numbers
    return c.write("Where", over, difference, g.number(float(c["value"]), f"{c.name}.value"))


def _softplus(c: OpContext) -> str:
    # log(1 + exp(beta x)) / beta, or x where beta x is above the threshold; from 20 on both are the same float32.
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


def _glu(c: OpContext) -> str:
    names = [f"{c.name}.{n}" for n in ("value", "gate")]
    value, gate = c.graph.many("Split", [c.input()], names, axis=c["dim"], num_outputs=2 if c.graph.opset >= 18 else None)
    return c.write("Mul", value, c.graph.node("Sigmoid", [gate], f"{c.name}.sigmoid"))


def _softmin(c: OpContext) -> str:
    return c.write("Softmax", c.graph.node("Neg", [c.input()], f"{c.name}.neg"), axis=c["dim"])


def _guard(c: OpContext) -> str:
    sum_or_max = "Add" if c.node.target is guarded else "Max"
    return c.write(sum_or_max, c.input(), c.graph.number(float(c["least"]), f"{c.name}.least"))


def _term_times_value(op: str) -> Write:
    def write(c: OpContext) -> str:
        term = c.graph.node(op, [c.input("tensor1"), c.input("tensor2")], f"{c.name}.{op.lower()}")
        factor = c.graph.number(float(c["value"]), f"{c.name}.value")
        return c.write("Add", c.input(), c.graph.node("Mul", [term, factor], f"{c.name}.scaled"))

    return write


def _lerp(c: OpContext) -> str:
    difference = c.graph.node("Sub", [c.input("end"), c.input()], f"{c.name}.apart")
    return c.write("Add", c.input(), c.graph.node("Mul", [difference, c.input("weight")], f"{c.name}.part"))


_DOUBLE = element_type(torch.float64)


_LEAST = np.finfo(np.float32).tiny


def _scaled_add(c: OpContext) -> str:
    x, other = operands(c, c.result.dtype, "input", "other")
    alpha = c.graph.constant(torch.tensor(c["alpha"], dtype=c.result.dtype), f"{c.name}.alpha")
    return c.write("Add", x, c.graph.node("Mul", [other, alpha], f"{c.name}.scaled"))


def _trunc_divide(c: OpContext) -> str:
    if not c.result.dtype.is_floating_point:  # ONNX divides integers towards zero
        return c.write("Div", *operands(c, c.result.dtype, "input", "other"))
    return formula("Div x other; Abs .; Floor .; Sign $0; Mul . $2")(c)


def _bound(c: OpContext) -> str:
    sides = [(op, p) for op, p in (("Max", "min"), ("Min", "max")) if c[p] is not None]
    (value,) = operands(c, c.result.dtype, "input")
    for k, (op, p) in enumerate(sides):
        name = c.name if k == len(sides) - 1 else f"{c.name}.above"
        value = c.graph.node(op, [value, *operands(c, c.result.dtype, p)], name)
    return value


def _round_decimals(c: OpContext) -> str:
    g, factor = c.graph, c.graph.number(10.0 ** abs(c["decimals"]), f"{c.name}.factor")
    there, back = ("Mul", "Div") if c["decimals"] > 0 else ("Div", "Mul")
    return c.write(back, g.node("Round", [g.node(there, [c.input(), factor], f"{c.name}.scaled")], f"{c.name}.whole"), factor)


def _nan_to_num(c: OpContext) -> str:
    g, most = c.graph, float(torch.finfo(c.result.dtype).max)
    value = g.node("Max", [c.input()], f"{c.name}.float")  # a copy: ONNX Runtime would choose among codes
    for word, given, otherwise in (("nan", c["nan"], 0.0), ("posinf", c["posinf"], most), ("neginf", c["neginf"], -most)):
        only = {} if word == "nan" else {"detect_positive": int(word == "posinf"), "detect_negative": int(word == "neginf")}
        found = g.node("IsInf" if only else "IsNaN", [value], f"{c.name}.is_{word}", **only)
        put = g.number(otherwise if given is None else float(given), f"{c.name}.{word}")
        value = g.node("Where", [found, put, value], c.name if word == "neginf" else f"{c.name}.no_{word}")
    return value


def _hypot(c: OpContext) -> str:
    # In float64, which represents the squares of float32 without overflow.
    g, wide = c.graph, [c.graph.node("Cast", [c.input(p)], f"{c.name}.{p}.wide", to=_DOUBLE) for p in ("input", "other")]
    squares = [g.node("Mul", [w, w], f"{c.name}.square_{k}") for k, w in enumerate(wide)]
    root = g.node("Sqrt", [g.node("Add", squares, f"{c.name}.sum")], f"{c.name}.root")
    return c.write("Cast", root, to=element_type(c.result.dtype))


_COMPARED = {torch.ge: "GreaterOrEqual", torch.gt: "Greater", torch.le: "LessOrEqual", torch.lt: "Less", torch.eq: "Equal"}


_LOGIC = {
    torch.bitwise_and: "And",
    torch.bitwise_or: "Or",
    torch.bitwise_xor: "Xor",
    torch.logical_and: "And",
    torch.logical_or: "Or",
}


def _compare(c: OpContext) -> str:
    given = operands(c, promoted(c, "a", "b"), "a", "b")
    if c.node.target is torch.ne:
        return c.write("Not", c.graph.node("Equal", given, f"{c.name}.equal"))
    return c.write(_COMPARED[c.node.target], *given)  # type: ignore[index]


def _logic(c: OpContext) -> str:
    if c.result.dtype != torch.bool:
        do = "Compare first, so that masks are of type bool."
        raise DeployError(where=f"op {c.name!r}", found=f"bits of {c.result.dtype}", wanted="masks of type torch.bool", do=do)
    return c.write(_LOGIC[c.node.target], *operands(c, torch.bool, "a", "b"))  # type: ignore[index]


def _binary(op: str, second: str = "other") -> Write:
    def write(c: OpContext) -> str:
        values = dict(zip(("input", second), operands(c, c.result.dtype, "input", second), strict=True))
        kept = c.kept()
        if kept is not None and c.result.dtype.is_floating_point:
            # ONNX Runtime removes x * 1 and joins the quantizers before and after it, which round twice; it keeps a copy.
            values[kept] = c.graph.node("Max", [values[kept]], f"{c.name}.float")
        return c.write(op, *values.values())

    return write


def _relu(c: OpContext) -> str:
    if c.result.dtype.is_floating_point:
        return c.write("Relu", c.input())
    return c.write("Max", c.input(), c.graph.constant(torch.tensor(0, dtype=c.result.dtype), f"{c.name}.zero"))


def _clip(c: OpContext) -> str:
    dtype = c.result.dtype
    bounds = [
        "" if c[p] is None else c.graph.constant(torch.tensor(c[p], dtype=dtype), f"{c.name}.{p}") for p in ("min", "max")
    ]
    return c.write("Clip", operand(c, "input", dtype), *bounds)


def _prelu(c: OpContext) -> str:
    axes = list(range(1, c.shape().rank - 1))
    source, slope = c.input(), c.input("weight")
    if axes and c.shapes[c["weight"].name].dims != (1,):  # ONNX broadcasts from the right, torch along the channels
        slope = c.graph.node("Unsqueeze", [slope, c.graph.integers(*axes, name=f"{c.name}.axes")], f"{c.name}.slope")
    return c.write("PRelu", source, slope)


def _integer_type(c: OpContext) -> int:
    return {torch.int64: 7, torch.int32: 6, torch.float32: 1}.get(c.result.dtype, 7)


WRITERS: dict[str, Write] = {
    "add": _binary("Add"), "sub": _binary("Sub"), "mul": _binary("Mul"), "div": _binary("Div"),
    "pow": _binary("Pow", "exponent"), "minimum": _binary("Min"), "maximum": _binary("Max"), "scaled_add": _scaled_add,
    "addcmul": _term_times_value("Mul"), "addcdiv": _term_times_value("Div"), "lerp": _lerp, "floor_divide": _floor_divide,
    "trunc_divide": _trunc_divide, "remainder": _remainder, "hypot": _hypot,
    "atan2": formula(f"Equal other 0; Where . {_LEAST} other; Div x .; Atan .; Less x 0; Where . {-math.pi} {math.pi}; "
                     "Less other 0; Where . $5 0; Add $3 ."),
    "round_decimals": _round_decimals, "nan_to_num": _nan_to_num, "guard": _guard, "clip": _clip, "bound": _bound,
    "relu": _relu, "prelu": _prelu, "softplus": _softplus, "threshold": _threshold, "glu": _glu, "softmin": _softmin,
    "compare": _compare, "logic": _logic, "not": lambda c: c.write("Not", *operands(c, torch.bool, "value")),
}  # fmt: skip
"""The writers of this family, by kind."""
