"""Core ops that were activation functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from qfunc.frontend.export.aten import Call, arg, args, aten, read, shape

_OPS: Any = torch.ops.aten
_SELU = 1.6732632423543772, 1.0507009873554805


def _first(node: Any, name: str) -> Any:
    return (read(node, name) or (None,))[0]


def _pair(node: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    a, b = args(node)[:2]
    return (a, b), (b, a)


def _upper_six(node: Any) -> Any:
    # x of min(max(x + 3, 0), 6)
    below = read(node, "clamp")
    above: tuple[Any, ...] = read(below[0], "clamp") if below[1:] == (None, 6) else ()
    shifted: tuple[Any, ...] = read(above[0], "add") if above[1:] == (0,) else ()
    return shifted[0] if shifted[1:] == (3,) else None


def _divided(node: fx.Node) -> Call | None:
    if node.args[1] != 6:
        return None
    x = _upper_six(node.args[0])
    if x is not None:
        return Call(_OPS.hardsigmoid.default, (x,))
    if aten(node.args[0]) == "mul":
        for x, other in _pair(node.args[0]):
            if isinstance(x, fx.Node) and _upper_six(other) is x:
                return Call(_OPS.hardswish.default, (x,))
    return None


def _multiplied(node: fx.Node) -> Call | None:
    for x, other in _pair(node):
        if not isinstance(x, fx.Node) or not isinstance(other, fx.Node):
            continue
        if _first(other, "sigmoid") is x:
            return Call(_OPS.silu.default, (x,))
        if _first(_first(other, "tanh"), "softplus") is x:
            return Call(_OPS.mish.default, (x,))
        halves = [read(v, "slice") for v in (x, _first(other, "sigmoid"))]
        if all(len(h) == 4 for h in halves) and halves[0][:2] == halves[1][:2]:
            source, dim = halves[0][:2]
            size = (shape(source) or {dim: ""})[dim]
            if (halves[0][2], str(halves[0][3]), str(halves[1][3])) == (0, str(halves[1][2]), size):
                return Call(_OPS.glu.default, (source, dim))
    return None


def _chosen(node: fx.Node) -> Call | None:
    if len(node.args) != 3:
        return None
    condition, a, b = args(node)
    x, bound = read(condition, "gt") or (None, None)
    if x is None:
        return None
    if a is x and bound == 0:
        return _prelu(x, b) or _celu(x, b)
    return _softplus(x, a, b, bound)


def _prelu(x: fx.Node, below: Any) -> Call | None:
    factors: tuple[Any, ...] = read(below, "mul") or (None, None)
    slope, same = factors
    slope = slope.args[0] if aten(slope) in ("view", "reshape") else slope
    held = getattr(slope, "op", "") == "get_attr"
    return Call(_OPS.prelu.default, (x, slope)) if same is x and held else None


def _celu(x: fx.Node, below: Any) -> Call | None:
    grown, alpha = read(below, "mul") or (None, None)
    divided = read(_first(grown, "expm1"), "div")
    return Call(_OPS.celu.default, (x, alpha)) if divided == (x, alpha) else None


def _softplus(z: fx.Node, x: Any, curved: Any, threshold: Any) -> Call | None:
    # where(z > threshold, x, log1p(exp(z)) / beta), z = beta x
    beta = 1.0 if z is x else read(z, "mul")[1] if read(z, "mul")[:1] == (x,) else None
    curved = curved if beta == 1.0 else (read(curved, "div") or (None,))[0]
    grown = _first(_first(curved, "log1p"), "exp")
    return Call(_OPS.softplus.default, (x, beta, threshold)) if grown is z and isinstance(beta, float) else None


def _elu(node: fx.Node) -> Call | None:
    alpha, scale = arg(node, 1, 1.0), arg(node, 2, 1.0)
    selu = all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip((alpha, scale), _SELU, strict=True))
    return Call(_OPS.selu.default, (node.args[0],)) if selu else None


def _subtracted(node: fx.Node) -> Call | None:
    # min(0, x) - log1p(exp(-|x|))
    zero, x = read(node.args[0], "minimum") or (None, None)
    chain = args(node)[1]
    for name in ("log1p", "exp", "neg", "abs"):
        chain = _first(chain, name)
    plain = x is not None and chain is x and read(zero, "full")[:2] == ([], 0)
    return Call(_OPS.log_sigmoid.default, (x,)) if plain else None


CURVES: dict[str, Callable[[fx.Node], Any]] = {
    "div": _divided,
    "mul": _multiplied,
    "where": _chosen,
    "elu": _elu,
    "sub": _subtracted,
}

__all__ = ["CURVES"]
