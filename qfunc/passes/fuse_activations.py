"""Rewrites that fuse a quotient, and an activation function written with exp, erf or tanh, into one op.

c / x = c * reciprocal(x), as torch.export records it;  sigmoid(x) = 1 / (1 + exp(-x));
silu(x) = x sigmoid(x) = x / (1 + exp(-x));  gelu(x) = x/2 (1 + erf(x / sqrt(2))), or with tanh(sqrt(2/pi) (x + 0.044715 x^3));
hardsigmoid(x) = min(max(x + 3, 0), 6) / 6 = min(max(x / 6 + 1/2, 0), 1);  hardswish(x) = x hardsigmoid(x);
mish(x) = x tanh(log(1 + exp(x)));  leaky_relu(x) = max(x, 0) - a max(-x, 0), a prelu where a is a parameter
"""

from __future__ import annotations

import math
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from qfunc.graph.constants import read_attr
from qfunc.graph.matcher import Call, Rewrite, calls
from qfunc.graph.patterns import Match, OpPattern, Var, either, number, op, tensor
from qfunc.ops.activation import gelu

_X = tensor("x")
_DIVISOR = op("add", op("exp", op("neg", _X), key=True), 1, commutative=True)
_RECIPROCAL = op("reciprocal", _DIVISOR)
_QUOTIENT = op("div", 1, _DIVISOR)
_PRODUCT = op("mul", 1, _RECIPROCAL, commutative=True)  # torch's 1 / x

_GATED = op("mul", _X, either(_QUOTIENT, _PRODUCT, _RECIPROCAL), commutative=True)

_CUBE = either(op("pow", _X, 3), op("mul", op("mul", _X, _X), _X, commutative=True))
_SQUARE = op("mul", op("mul", number("cubic"), _X, commutative=True), _X, commutative=True)
_TERM = either(op("mul", number("cubic"), _CUBE, commutative=True), op("mul", _SQUARE, _X, commutative=True))
_SUM = op("add", _X, _TERM, commutative=True)
_SCALED, _GROWN = op("mul", _X, number("root"), commutative=True), op("add", 1, _SQUARE, commutative=True)
_FACTORED = op("mul", _SCALED, _GROWN, commutative=True)
_TANH = op("tanh", either(op("mul", number("root"), _SUM, commutative=True), _FACTORED), key=True)
_ERF = op("erf", either(op("div", _X, number("width")), op("mul", _X, number("narrow"), commutative=True)), key=True)
_CONSTANTS = {"cubic": 0.044715, "root": math.sqrt(2 / math.pi), "width": math.sqrt(2), "narrow": math.sqrt(0.5),
              "sixth": 1 / 6}  # fmt: skip

_SIXTH = number("sixth")
_THREE_MORE = op("add", _X, 3, commutative=True)
_SIX = either(op("clip", _THREE_MORE, 0, 6, key=True), op("clip", op("relu", _THREE_MORE, key=True), None, 6))
_LINE = op("add", either(op("mul", _X, _SIXTH, commutative=True), op("div", _X, 6)), 0.5, commutative=True)
_HARD_SIGMOIDS = (op("div", _SIX, 6), op("mul", _SIX, _SIXTH, commutative=True), op("clip", _LINE, 0, 1, key=True))
_HARD_SWISHES = (
    op("mul", _X, either(op("hardsigmoid", _X), *_HARD_SIGMOIDS), commutative=True),
    op("div", op("mul", _X, _SIX, commutative=True), 6),
    op("mul", op("mul", _X, _SIX, commutative=True), _SIXTH, commutative=True),
)
_LOGARITHM = either(op("softplus", _X, 1, Var("threshold"), key=True),
                    op("log", op("add", op("exp", _X), 1, commutative=True)), op("log1p", op("exp", _X)))  # fmt: skip
_MISH = op("mul", _X, op("tanh", _LOGARITHM), commutative=True)

_POSITIVE, _NEGATIVE = (either(op("relu", of), op("clip", of, 0, None)) for of in (_X, op("neg", _X, key=True)))
_BELOW = op("clip", _X, None, 0, key=True)


def _with_slope(slope: Any) -> tuple[OpPattern, ...]:
    # max(x, 0) - a max(-x, 0) = max(x, 0) + a min(x, 0)
    return (op("sub", _POSITIVE, op("mul", _NEGATIVE, slope, commutative=True)),
            op("add", _POSITIVE, op("mul", _BELOW, slope, commutative=True), commutative=True))  # fmt: skip


def _is_slope(node: Any) -> bool:
    # A parameter with one element, or with one for each channel of an image.
    if not isinstance(node, fx.Node) or node.op != "get_attr" or node.graph.owning_module is None:
        return False
    shape = tuple(read_attr(node.graph.owning_module, node).shape)
    return prod(shape) == 1 or (len(shape) > 2 and shape[-2:] == (1, 1) and prod(shape) == shape[-3])


def _prelu(found: Match) -> Call:
    slope, graph = found["slope"], found.root.graph
    with graph.inserting_before(found.root):
        return Call(torch.prelu, (found["x"], graph.call_function(torch.reshape, (slope, (-1,)))))


def _halves(curve: OpPattern) -> tuple[OpPattern, ...]:
    # x/2 (1 + curve), with its factors in any order.
    grown = op("add", 1, curve, commutative=True)
    orders = ((0.5, _X, grown), (0.5, grown, _X), (_X, grown, 0.5))
    return tuple(op("mul", op("mul", a, b, commutative=True), c, commutative=True) for a, b, c in orders)


def _other_constant(found: Match) -> str:
    for name, wanted in _CONSTANTS.items():
        value = found.get(name)
        if value is not None and not math.isclose(value, wanted, rel_tol=1e-5):
            return f"{value} stands where {wanted:.7g} is wanted"
    return ""


def _gelu(approximate: str, curve: OpPattern) -> tuple[Rewrite, ...]:
    def replacement(found: Match) -> Call:
        return Call(gelu, (found["x"], approximate))

    return tuple(Rewrite("gelu", pattern, replacement, check=_other_constant) for pattern in _halves(curve))


def _unary(name: str, target: Any, pattern: OpPattern) -> Rewrite:
    return Rewrite(name, pattern, calls(target, "x"), check=_other_constant)


QUOTIENTS = ((Rewrite("div", op("mul", number("c"), op("reciprocal", _X), commutative=True), calls(torch.div, "c", "x")),),)
"""One stage, before norms and activations: their patterns have quotients."""

ACTIVATIONS = (
    (_unary("silu", F.silu, op("div", _X, _DIVISOR)), _unary("silu", F.silu, _GATED)),
    (_unary("sigmoid", torch.sigmoid, _QUOTIENT), _unary("sigmoid", torch.sigmoid, _PRODUCT)),
    (_unary("sigmoid", torch.sigmoid, _RECIPROCAL),),
    (*_gelu("none", _ERF), *_gelu("tanh", _TANH)),
    (*(_unary("hardswish", F.hardswish, each) for each in _HARD_SWISHES), _unary("mish", F.mish, _MISH)),
    tuple(_unary("hardsigmoid", F.hardsigmoid, each) for each in _HARD_SIGMOIDS),
    (
        *(Rewrite("leaky_relu", each, calls(F.leaky_relu, "x", "slope")) for each in _with_slope(number("slope"))),
        *(Rewrite("prelu", each, _prelu) for each in _with_slope(tensor("slope", _is_slope, "a parameter"))),
    ),
)
"""Larger patterns are in earlier stages, because smaller ones match parts of them."""
