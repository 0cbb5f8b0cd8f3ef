"""Rewrites that fuse a quotient, and an activation function written with exp, erf or tanh, into one op.

c / x = c * reciprocal(x), as torch.export records it;  sigmoid(x) = 1 / (1 + exp(-x));
silu(x) = x sigmoid(x) = x / (1 + exp(-x));  gelu(x) = x/2 (1 + erf(x / sqrt(2))), or with tanh(sqrt(2/pi) (x + 0.044715 x^3))
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from qfunc.graph.matcher import Call, Rewrite, calls
from qfunc.graph.patterns import Match, OpPattern, either, number, op, tensor
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
_CONSTANTS = {"cubic": 0.044715, "root": math.sqrt(2 / math.pi), "width": math.sqrt(2), "narrow": math.sqrt(0.5)}


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
    return Rewrite(name, pattern, calls(target, "x"))


QUOTIENTS = ((Rewrite("div", op("mul", number("c"), op("reciprocal", _X), commutative=True), calls(torch.div, "c", "x")),),)
"""One stage, before norms and activations: their patterns have quotients."""

ACTIVATIONS = (
    (_unary("silu", F.silu, op("div", _X, _DIVISOR)), _unary("silu", F.silu, _GATED)),
    (_unary("sigmoid", torch.sigmoid, _QUOTIENT), _unary("sigmoid", torch.sigmoid, _PRODUCT)),
    (_unary("sigmoid", torch.sigmoid, _RECIPROCAL),),
    (*_gelu("none", _ERF), *_gelu("tanh", _TANH)),
)
"""Larger patterns are in earlier stages, because smaller ones match parts of them."""
