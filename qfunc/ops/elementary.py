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
       traits=_REAL | _SCALED | Trait.INTEGER_IF_INPUTS | _OF_POSITIONS | Trait.FOLDABLE, onnx="Neg x"),
    op("abs", torch.abs, "input", "abs", "absolute",
       traits=_POSITIVE | _SCALED | Trait.KEEPS_CONSTANTS | Trait.INTEGER_IF_INPUTS | _OF_POSITIONS | Trait.FOLDABLE,
       onnx="Abs x"),
    op("exp", torch.exp, "input", "exp", traits=_POSITIVE | _OF_POSITIONS | Trait.FOLDABLE, onnx="Exp x"),
    op("sqrt", torch.sqrt, "input", "sqrt", traits=_POSITIVE | _OF_POSITIONS | Trait.FOLDABLE, onnx="Sqrt x"),
    op("rsqrt", torch.rsqrt, "input", "rsqrt", traits=_POSITIVE | _OF_POSITIONS | Trait.FOLDABLE, onnx="Sqrt x; Reciprocal ."),
    op("log", torch.log, "input", "log", traits=_REAL | _OF_POSITIONS, onnx="Log x"),
    op("reciprocal", torch.reciprocal, "input", "reciprocal", traits=_ODD, onnx="Reciprocal x"),
    op("square", torch.square, "input", "square", traits=_POSITIVE | Trait.INTEGER_IF_INPUTS, onnx="Pow x 2"),
    op("exp2", torch.exp2, "input", "exp2", traits=_POSITIVE, onnx="Mul x 0.6931471805599453; Exp ."),
    # tanh(x/2) (exp(x) + 1), which cancels nowhere
    op("expm1", torch.expm1, "input", "expm1", traits=_ODD, onnx="Mul x 0.5; Tanh .; Exp x; Add . 1; Mul $1 ."),
    # log(u) + (x - (u - 1)) / u with u = float32(x + 1): the second term corrects the rounding of u
    op("log1p", torch.log1p, "input", "log1p", traits=_ODD,
       onnx="Add x 1; Sub . 1; Sub x .; Max $0 1e-30; Div $2 .; Log $0; Add . $4"),
    op("log2", torch.log2, "input", "log2", traits=_REAL, onnx="Log x; Div . 0.6931471805599453"),
    op("log10", torch.log10, "input", "log10", traits=_REAL, onnx="Log x; Div . 2.302585092994046"),
    op("erf", torch.erf, "input", "erf", traits=_ODD, onnx="Erf x"),
    op("erfc", torch.erfc, "input", "erfc", traits=_POSITIVE, onnx="Erf x; Neg .; Add . 1"),
    op("sin", torch.sin, "input", "sin", traits=_REAL | _OF_POSITIONS, onnx="Sin x"),
    op("cos", torch.cos, "input", "cos", traits=_REAL | _OF_POSITIONS, onnx="Cos x"),
    op("tan", torch.tan, "input", "tan", traits=_REAL, onnx="Tan x"),
    op("asin", torch.asin, "input", "asin", "arcsin", traits=_ODD, onnx="Asin x"),
    op("acos", torch.acos, "input", "acos", "arccos", traits=_POSITIVE, onnx="Acos x"),
    op("atan", torch.atan, "input", "atan", "arctan", traits=_ODD, onnx="Atan x"),
    op("sinh", torch.sinh, "input", "sinh", traits=_ODD, onnx="Sinh x"),
    op("cosh", torch.cosh, "input", "cosh", traits=_POSITIVE, onnx="Cosh x"),
    op("asinh", torch.asinh, "input", "asinh", traits=_ODD, onnx="Asinh x"),
    op("acosh", torch.acosh, "input", "acosh", traits=_POSITIVE, onnx="Acosh x"),
    op("atanh", torch.atanh, "input", "atanh", traits=_ODD, onnx="Atanh x"),
    op("floor", torch.floor, "input", "floor", traits=_STEP | _OF_POSITIONS, onnx="Floor x"),
    op("ceil", torch.ceil, "input", "ceil", traits=_STEP, onnx="Ceil x"),
    op("round", torch.round, "input", rewrites={"round": _round}, traits=_STEP, onnx="Round x"),
    op("trunc", torch.trunc, "input", "trunc", "fix", traits=_STEP, onnx="Abs x; Floor .; Sign x; Mul $1 $2"),
    op("frac", torch.frac, "input", "frac", traits=_ODD, onnx="Abs x; Floor .; Sign x; Mul $1 $2; Sub x ."),
    op("sign", torch.sign, "input", "sign", "sgn", traits=_EACH | Trait.KEEPS_SIGN | Trait.INTEGER_IF_INPUTS, onnx="Sign x"),
    op("isnan", torch.isnan, "input", "isnan", traits=_TEST, onnx="IsNaN x"),
    op("isinf", torch.isinf, "input", "isinf", traits=_TEST, onnx="IsInf x"),
)  # fmt: skip
