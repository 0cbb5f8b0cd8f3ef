"""Functions of one number: powers, exponentials, trigonometry, rounding, and tests for NaN and infinity."""

from __future__ import annotations

from typing import Any

import torch

from qfunc.ops.arithmetic import rounded
from qfunc.ops.binding import exactly
from qfunc.ops.definition import Call, Op, Trait, op


def _round(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = exactly("input decimals", args, kwargs)
    if given is None:
        return None
    decimals = given.get("decimals", 0)
    return (rounded, (given["input"], decimals)) if decimals else (op.call, (given["input"],))


_EACH = Trait.ELEMENTWISE
_REAL = _EACH | Trait.NEVER_BOOLEAN
_ODD = _REAL | Trait.KEEPS_SIGN
_POSITIVE = _ODD | Trait.NON_NEGATIVE
_STEP = _ODD | Trait.INTEGER_IF_INPUTS
_TEST = _EACH | Trait.INTEGER_RESULT | Trait.NON_NEGATIVE | Trait.KEEPS_SIGN
_OF_POSITIONS = Trait.POSITION_IF_INPUTS
_SCALED = Trait.HOMOGENEOUS | Trait.SCALES_WITH_CHANNELS

ROWS: tuple[Op, ...] = (
    op("neg", torch.neg, "input", "neg", "negative",
       traits=_REAL | _SCALED | Trait.INTEGER_IF_INPUTS | _OF_POSITIONS | Trait.FOLDABLE),
    op("abs", torch.abs, "input", "abs", "absolute",
       traits=_POSITIVE | _SCALED | Trait.INTEGER_IF_INPUTS | _OF_POSITIONS | Trait.FOLDABLE),
    op("exp", torch.exp, "input", "exp", traits=_POSITIVE | _OF_POSITIONS | Trait.FOLDABLE),
    op("sqrt", torch.sqrt, "input", "sqrt", traits=_POSITIVE | _OF_POSITIONS | Trait.FOLDABLE),
    op("rsqrt", torch.rsqrt, "input", "rsqrt", traits=_POSITIVE | _OF_POSITIONS | Trait.FOLDABLE),
    op("log", torch.log, "input", "log", traits=_REAL | _OF_POSITIONS),
    op("reciprocal", torch.reciprocal, "input", "reciprocal", traits=_ODD),
    op("square", torch.square, "input", "square", traits=_POSITIVE | Trait.INTEGER_IF_INPUTS),
    op("exp2", torch.exp2, "input", "exp2", traits=_POSITIVE),
    op("expm1", torch.expm1, "input", "expm1", traits=_ODD),
    op("log1p", torch.log1p, "input", "log1p", traits=_ODD),
    op("log2", torch.log2, "input", "log2", traits=_REAL),
    op("log10", torch.log10, "input", "log10", traits=_REAL),
    op("erf", torch.erf, "input", "erf", traits=_ODD),
    op("erfc", torch.erfc, "input", "erfc", traits=_POSITIVE),
    op("sin", torch.sin, "input", "sin", traits=_REAL | _OF_POSITIONS),
    op("cos", torch.cos, "input", "cos", traits=_REAL | _OF_POSITIONS),
    op("tan", torch.tan, "input", "tan", traits=_REAL),
    op("asin", torch.asin, "input", "asin", "arcsin", traits=_ODD),
    op("acos", torch.acos, "input", "acos", "arccos", traits=_POSITIVE),
    op("atan", torch.atan, "input", "atan", "arctan", traits=_ODD),
    op("sinh", torch.sinh, "input", "sinh", traits=_ODD),
    op("cosh", torch.cosh, "input", "cosh", traits=_POSITIVE),
    op("asinh", torch.asinh, "input", "asinh", traits=_ODD),
    op("acosh", torch.acosh, "input", "acosh", traits=_POSITIVE),
    op("atanh", torch.atanh, "input", "atanh", traits=_ODD),
    op("floor", torch.floor, "input", "floor", traits=_STEP | _OF_POSITIONS),
    op("ceil", torch.ceil, "input", "ceil", traits=_STEP),
    op("round", torch.round, "input", rewrites={"round": _round}, traits=_STEP),
    op("trunc", torch.trunc, "input", "trunc", "fix", traits=_STEP),
    op("frac", torch.frac, "input", "frac", traits=_ODD),
    op("sign", torch.sign, "input", "sign", "sgn", traits=_EACH | Trait.KEEPS_SIGN | Trait.INTEGER_IF_INPUTS),
    op("isnan", torch.isnan, "input", "isnan", traits=_TEST),
    op("isinf", torch.isinf, "input", "isinf", traits=_TEST),
)  # fmt: skip
