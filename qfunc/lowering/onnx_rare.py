"""How ops that networks seldom have are written in ONNX."""

from __future__ import annotations

import math

import numpy as np
import torch

from qfunc.lowering.onnx_call import Call
from qfunc.lowering.onnx_formula import Write, formula
from qfunc.lowering.onnx_graph import element_type
from qfunc.lowering.onnx_index import operands
from qfunc.lowering.onnx_windows import WINDOW_WRITERS, pair

_DOUBLE = element_type(torch.float64)
_LEAST = np.finfo(np.float32).tiny


def _scaled_add(c: Call) -> str:
    x, other = operands(c, c.result.dtype, "input", "other")
    alpha = c.graph.constant(torch.tensor(c["alpha"], dtype=c.result.dtype), f"{c.name}.alpha")
    return c.write("Add", x, c.graph.node("Mul", [other, alpha], f"{c.name}.scaled"))


def _trunc_divide(c: Call) -> str:
    if not c.result.dtype.is_floating_point:  # integers of ONNX divide towards zero
        return c.write("Div", *operands(c, c.result.dtype, "input", "other"))
    return formula("Div x other; Abs .; Floor .; Sign $0; Mul . $2")(c)


def _bound(c: Call) -> str:
    sides = [(op, p) for op, p in (("Max", "min"), ("Min", "max")) if c[p] is not None]
    (value,) = operands(c, c.result.dtype, "input")
    for k, (op, p) in enumerate(sides):
        name = c.name if k == len(sides) - 1 else f"{c.name}.above"
        value = c.graph.node(op, [value, *operands(c, c.result.dtype, p)], name)
    return value


def _round_decimals(c: Call) -> str:
    g, factor = c.graph, c.graph.number(10.0 ** abs(c["decimals"]), f"{c.name}.factor")
    there, back = ("Mul", "Div") if c["decimals"] > 0 else ("Div", "Mul")
    return c.write(back, g.node("Round", [g.node(there, [c.input(), factor], f"{c.name}.scaled")], f"{c.name}.whole"), factor)


def _nan_to_num(c: Call) -> str:
    g, most = c.graph, float(torch.finfo(c.result.dtype).max)
    value = g.node("Max", [c.input()], f"{c.name}.float")  # a copy: ONNX Runtime would choose among codes
    for word, given, otherwise in (("nan", c["nan"], 0.0), ("posinf", c["posinf"], most), ("neginf", c["neginf"], -most)):
        only = {} if word == "nan" else {"detect_positive": int(word == "posinf"), "detect_negative": int(word == "neginf")}
        found = g.node("IsInf" if only else "IsNaN", [value], f"{c.name}.is_{word}", **only)
        put = g.number(otherwise if given is None else float(given), f"{c.name}.{word}")
        value = g.node("Where", [found, put, value], c.name if word == "neginf" else f"{c.name}.no_{word}")
    return value


def _hypot(c: Call) -> str:
    # In float64, where the squares of float32 have room.
    g, wide = c.graph, [c.graph.node("Cast", [c.input(p)], f"{c.name}.{p}.wide", to=_DOUBLE) for p in ("input", "other")]
    squares = [g.node("Mul", [w, w], f"{c.name}.square_{k}") for k, w in enumerate(wide)]
    root = g.node("Sqrt", [g.node("Add", squares, f"{c.name}.sum")], f"{c.name}.root")
    return c.write("Cast", root, to=element_type(c.result.dtype))


def _lp_pool(c: Call) -> str:
    # The root of the sum of powers: ONNX's own LpPool takes their magnitudes.
    g, order, kernel = c.graph, float(c["norm_type"]), pair(c["kernel_size"], c.shape().rank - 2)
    stride = pair(c["stride"] or c["kernel_size"], len(kernel))
    powers = g.node("Pow", [c.input(), g.number(order, f"{c.name}.order")], f"{c.name}.powers")
    given = {"kernel_shape": kernel, "strides": stride, "ceil_mode": int(c["ceil_mode"])}
    mean = g.node("AveragePool", [powers], f"{c.name}.mean", **given)
    total = g.node("Mul", [mean, g.number(math.prod(kernel), f"{c.name}.count")], f"{c.name}.sum")
    return c.write("Pow", total, g.number(1 / order, f"{c.name}.root"))


RARE_WRITERS: dict[str, Write] = {
    "scaled_add": _scaled_add, "trunc_divide": _trunc_divide, "bound": _bound, "round_decimals": _round_decimals,
    "nan_to_num": _nan_to_num, "hypot": _hypot, "lp_pool": _lp_pool, **WINDOW_WRITERS,
    "logaddexp": formula("Sub x other; Equal x other; Where . 0 $0; Abs .; Neg .; Softplus .; Max x other; Add . $5"),
    "atan2": formula(f"Equal other 0; Where . {_LEAST} other; Div x .; Atan .; Less x 0; Where . {-math.pi} {math.pi}; "
                     "Less other 0; Where . $5 0; Add $3 ."),
    "xlogy": formula("Equal x 0; IsNaN other; Not .; And $0 .; Where . 1 other; Log .; Mul x ."),
}  # fmt: skip
"""The writers of this file, by kind."""
