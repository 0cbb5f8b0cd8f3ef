"""Rewrites that compose activation functions from core ATen ops."""

from __future__ import annotations

import math
from typing import Any

import torch

from qfunc.frontend.export.aten import shape
from qfunc.graph.matcher import Rewrite, calls
from qfunc.graph.patterns import Match, Through, Var, number, op, tensor

_OPS: Any = torch.ops.aten
_X = tensor("x")
_SIX = op("clamp", op("clamp", op("add", _X, 3), 0, None), None, 6)
_POSITIVE = op("gt", _X, 0)
_BETA, _THRESHOLD = number("beta", lambda v: isinstance(v, float)), Var("threshold")
_SCALED = op("mul", _X, _BETA, name="scaled")
_SLOPE = Through(("view", "reshape"), tensor("slope", lambda n: n.op == "get_attr", "a parameter"))


def _close(name: str, value: float) -> Var:
    return number(name, lambda v: math.isclose(v, value, rel_tol=1e-6), str(value))


def _no_halves(found: Match) -> str:
    source, dim = found["source"], found["dim"]
    size = (shape(source) or {dim: ""})[dim]
    halves = str(found["half"]) == str(found["start"]) and str(found["end"]) == size
    return "" if halves else "the slices are not the two halves of the axis"


def _one(name: str, pattern: Any, *operands: Any, **options: Any) -> Rewrite:
    target = getattr(_OPS, name).default
    return Rewrite(name, pattern, calls(target, *(operands or ("x",))), private=False, **options)


CURVES = (
    _one("hardsigmoid", op("div", _SIX, 6)),
    _one("hardswish", op("div", op("mul", _X, _SIX, commutative=True), 6)),
    _one("silu", op("mul", _X, op("sigmoid", _X), commutative=True)),
    _one("mish", op("mul", _X, op("tanh", op("softplus", _X, 1, 20)), commutative=True)),
    _one("glu", op("mul", op("slice", tensor("source"), Var("dim"), 0, Var("half")),
                   op("sigmoid", op("slice", tensor("source"), Var("dim"), Var("start"), Var("end"))), commutative=True),
         "source", "dim", check=_no_halves),
    _one("prelu", op("where", _POSITIVE, _X, op("mul", _SLOPE, _X)), "x", "slope"),
    _one("celu", op("where", _POSITIVE, _X, op("mul", op("expm1", op("div", _X, Var("alpha"))), Var("alpha"))), "x", "alpha"),
    _one("celu", op("where", _POSITIVE, _X, op("expm1", _X)), "x", 1.0),
    # log1p(exp(z)) / beta, with z = beta x, and x above the threshold
    _one("softplus", op("where", op("gt", _X, _THRESHOLD), _X, op("log1p", op("exp", _X))), "x", 1.0, "threshold"),
    _one("softplus", op("where", op("gt", _SCALED, _THRESHOLD), _X, op("div", op("log1p", op("exp", _SCALED)), _BETA)),
         "x", "beta", "threshold"),
    _one("selu", op("elu", _X, _close("alpha", 1.6732632423543772), _close("scale", 1.0507009873554805))),
    # min(0, x) - log1p(exp(-|x|))
    _one("log_sigmoid", op("sub", op("minimum", op("full", [], 0), _X), op("log1p", op("exp", op("neg", op("abs", _X)))))),
)  # fmt: skip

__all__ = ["CURVES"]
