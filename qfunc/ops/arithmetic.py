"""Arithmetic of two or three operands, guards of divisions, and rounding at a decimal place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from qfunc.ops.binding import bind, exactly
from qfunc.ops.definition import Call, Op, Rewrite, Trait, op


def plus(input: Tensor, other: Tensor | float, alpha: float) -> Tensor:
    """Return input + alpha * other.

    >>> plus(torch.ones(1), torch.ones(1), -2)
    tensor([-1.])
    """
    return torch.add(input, other, alpha=alpha)


def truncated(input: Tensor, other: Tensor | float) -> Tensor:
    """Return input / other, rounded towards 0.

    >>> truncated(torch.tensor([-7.0]), 2)
    tensor([-3.])
    """
    return torch.div(input, other, rounding_mode="trunc")


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, value: float) -> Tensor:
    """Return input + value * tensor1 * tensor2.

    >>> addcmul(torch.ones(1), torch.ones(1), torch.ones(1), 2)
    tensor([3.])
    """
    return torch.addcmul(input, tensor1, tensor2, value=value)


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, value: float) -> Tensor:
    """Return input + value * tensor1 / tensor2.

    >>> addcdiv(torch.ones(1), torch.ones(1), torch.ones(1), 2)
    tensor([3.])
    """
    return torch.addcdiv(input, tensor1, tensor2, value=value)


def guarded(input: Tensor, least: float) -> Tensor:
    """Return input + least, for an input that is not negative.

    >>> guarded(torch.zeros(1), 0.5)
    tensor([0.5000])
    """
    return input + least


def at_least(input: Tensor, least: float) -> Tensor:
    """Return max(input, least).

    >>> at_least(torch.tensor([0.0, 2.0]), 0.5)
    tensor([0.5000, 2.0000])
    """
    return input.clamp_min(least)


def rounded(input: Tensor, decimals: int) -> Tensor:
    """Return the input rounded half to even at a decimal place.

    >>> rounded(torch.tensor([125.0]), -1)
    tensor([120.])
    """
    return torch.round(input, decimals=decimals)


def finite(input: Tensor, nan: float | None, posinf: float | None, neginf: float | None) -> Tensor:
    """Call `torch.nan_to_num`; None is 0 for NaN, and the largest or smallest value of the dtype for infinities.

    >>> finite(torch.tensor([torch.nan, torch.inf]), 1.0, 2.0, None)
    tensor([1., 2.])
    """
    return torch.nan_to_num(input, nan, posinf, neginf)


def _with_alpha(sign: int) -> Rewrite:
    def rewrite(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        alpha = kwargs.pop("alpha", 1)
        call = bind(op, args, kwargs)
        if call is None or alpha == 1:
            return call
        if isinstance(alpha, int | float):
            return plus, (*call[1], sign * alpha)
        return (plus, (*call[1], alpha)) if sign == 1 and isinstance(alpha, fx.Node) else None

    return rewrite


def _rsub(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    call = _with_alpha(-1)(op, args[:2], kwargs) if len(args) < 3 or args[2] == 1 else None
    return call and (call[0], (call[1][1], call[1][0], *call[1][2:]))


def _div(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    mode = kwargs.pop("rounding_mode", None)
    target = {None: op.call, "floor": torch.floor_divide, "trunc": truncated}.get(mode)
    call = bind(op, args, kwargs)
    return call and target and (target, call[1])


def _triple(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = exactly("input tensor1 tensor2 value", args, kwargs)
    return None if given is None else (op.call, tuple(given.get(n, 1) for n in ("input", "tensor1", "tensor2", "value")))


_EACH = Trait.ELEMENTWISE
_BINARY = _EACH | Trait.POSITION_IF_INPUTS
_SUM = Trait.HOMOGENEOUS
_EITHER = Trait.COMMUTATIVE
_FOUR = _BINARY | Trait.ARITHMETIC | Trait.FOLDABLE
_INTEGER = Trait.INTEGER_IF_INPUTS
_QUOTIENT = _EACH | Trait.NEVER_BOOLEAN | Trait.KEEPS_SIGN | Trait.INTEGER_IF_INPUTS
_REAL = _EACH | Trait.NEVER_BOOLEAN

ROWS: tuple[Op, ...] = (
    op("add", torch.add, "input other", "iadd", rewrites={"add": _with_alpha(1)}, neutral=0.0,
       traits=_FOUR | _EITHER | _SUM | _INTEGER | Trait.KEEPS_SIGN | Trait.KEEPS_LOW,
       example=lambda x: torch.add(x, x.flip(0))),
    op("sub", torch.sub, "input other", "isub", neutral=0.0, traits=_FOUR | _SUM | _INTEGER | Trait.NEVER_BOOLEAN,
       rewrites={"sub": _with_alpha(-1), "subtract": _with_alpha(-1), "rsub": _rsub},
       example=lambda x: torch.sub(x, x.flip(0))),
    op("mul", torch.mul, "input other", "imul", "mul", "multiply", neutral=1.0,
       traits=_FOUR | _EITHER | _INTEGER | Trait.KEEPS_SIGN, example=lambda x: torch.mul(x, x.flip(0))),
    op("div", torch.div, "input other", "truediv", "itruediv", "true_divide", rewrites={"div": _div, "divide": _div},
       neutral=1.0, traits=_FOUR | Trait.NEVER_BOOLEAN | Trait.KEEPS_SIGN, example=lambda x: torch.div(x, x.flip(0))),
    op("pow", torch.pow, "input exponent", "pow",
       traits=_BINARY | _INTEGER | Trait.FOLDABLE | Trait.NEVER_BOOLEAN | Trait.KEEPS_SIGN,
       example=lambda x: torch.pow(x, 3)),
    op("scaled_add", plus, "input other alpha", traits=_EACH | _SUM | _INTEGER, example=lambda x: plus(x, x.flip(0), -2)),
    op("trunc_divide", truncated, "input other", traits=_QUOTIENT, example=lambda x: truncated(x, x.flip(0))),
    op("floor_divide", torch.floor_divide, "input other", "floor_divide", "floordiv", "ifloordiv",
       traits=_QUOTIENT, example=lambda x: torch.floor_divide(x, x.flip(0))),
    op("remainder", torch.remainder, "input other", "remainder", "mod", "imod", traits=_QUOTIENT | _SUM,
       example=lambda x: torch.remainder(x, x.flip(0))),
    op("fmod", torch.fmod, "input other", "fmod", traits=_QUOTIENT | _SUM, example=lambda x: torch.fmod(x, x.flip(0)),
       onnx="Mod x other fmod=1"),
    op("addcmul", addcmul, "input tensor1 tensor2 value", rewrites={"addcmul": _triple}, traits=_REAL | _INTEGER,
       example=lambda x: addcmul(x, x.flip(0), x, -2)),
    op("addcdiv", addcdiv, "input tensor1 tensor2 value", rewrites={"addcdiv": _triple}, traits=_REAL,
       example=lambda x: addcdiv(x, x.flip(0), 0.7 * x.flip(0), -2)),
    op("lerp", torch.lerp, "input end weight", "lerp", traits=_REAL | _SUM,
       example=lambda x: torch.lerp(x, x.flip(0), 1.5)),
    op("hypot", torch.hypot, "input other", "hypot", traits=_REAL | _EITHER | _SUM | Trait.NON_NEGATIVE | Trait.KEEPS_SIGN,
       example=lambda x: torch.hypot(x, x.flip(0))),
    op("logaddexp", torch.logaddexp, "input other", "logaddexp", traits=_REAL | _EITHER | Trait.KEEPS_SIGN,
       example=lambda x: torch.logaddexp(x, x.flip(0) - 3),
       onnx="Sub x other; Equal x other; Where . 0 $0; Abs .; Neg .; Softplus .; Max x other; Add . $5"),
    op("atan2", torch.atan2, "input other", "atan2", "arctan2", traits=_REAL | Trait.KEEPS_SIGN,
       example=lambda x: torch.atan2(x, x.flip(0))),
    op("xlogy", torch.xlogy, "input other", "xlogy", "special_xlogy", traits=_REAL,
       example=lambda x: torch.xlogy(x, x.flip(0)),
       onnx="Equal x 0; IsNaN other; Not .; And $0 .; Where . 1 other; Log .; Mul x ."),
    op("minimum", torch.minimum, "input other", "minimum", traits=_BINARY | _EITHER | _SUM | _INTEGER | Trait.KEEPS_SIGN,
       example=lambda x: torch.minimum(x, x.flip(0))),
    op("maximum", torch.maximum, "input other", "maximum",
       traits=_BINARY | _EITHER | _SUM | _INTEGER | Trait.KEEPS_SIGN | Trait.KEEPS_LOW,
       example=lambda x: torch.maximum(x, x.flip(0))),
    op("guard", guarded, "input least", traits=_REAL | Trait.KEEPS_SIGN | Trait.FOLDABLE, example=lambda x: guarded(x, 0.1)),
    op("guard", at_least, "input least", traits=_REAL | Trait.NON_NEGATIVE | Trait.KEEPS_SIGN | Trait.FOLDABLE,
       example=lambda x: at_least(x, 0.1)),
    op("round_decimals", rounded, "input decimals", traits=_REAL | Trait.KEEPS_SIGN, example=lambda x: rounded(x, 1)),
    op("nan_to_num", finite, "input nan=None posinf=None neginf=None", "nan_to_num", traits=_EACH | _INTEGER,
       example=lambda x: finite(x, -0.5, None, None)),
)  # fmt: skip
