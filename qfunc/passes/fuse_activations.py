"""Rewrites that fuse a quotient, and an activation function written with exp, into one op.

c / x = c * reciprocal(x), as torch.export records it;  sigmoid(x) = 1 / (1 + exp(-x));
silu(x) = x sigmoid(x) = x / (1 + exp(-x))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from qfunc.graph.matcher import Rewrite, calls
from qfunc.graph.patterns import OpPattern, either, number, op, tensor

_X = tensor("x")
_DIVISOR = op("add", op("exp", op("neg", _X), key=True), 1, commutative=True)
_RECIPROCAL = op("reciprocal", _DIVISOR)
_QUOTIENT = op("div", 1, _DIVISOR)
_PRODUCT = op("mul", 1, _RECIPROCAL, commutative=True)  # torch's 1 / x

_GATED = op("mul", _X, either(_QUOTIENT, _PRODUCT, _RECIPROCAL), commutative=True)


def _unary(name: str, target: Any, pattern: OpPattern) -> Rewrite:
    return Rewrite(name, pattern, calls(target, "x"))


QUOTIENTS = ((Rewrite("div", op("mul", number("c"), op("reciprocal", _X), commutative=True), calls(torch.div, "c", "x")),),)
"""One stage, before norms and activations: their patterns have quotients."""

ACTIVATIONS = (
    (_unary("silu", F.silu, op("div", _X, _DIVISOR)), _unary("silu", F.silu, _GATED)),
    (_unary("sigmoid", torch.sigmoid, _QUOTIENT), _unary("sigmoid", torch.sigmoid, _PRODUCT)),
    (_unary("sigmoid", torch.sigmoid, _RECIPROCAL),),
)
"""Larger patterns are in earlier stages, because smaller ones match parts of them."""

__all__ = ["ACTIVATIONS", "QUOTIENTS"]
