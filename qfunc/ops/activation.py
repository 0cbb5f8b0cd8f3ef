"""Activations: rectifiers and clamps, sigmoids and other curves, gates, and softmax."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from qfunc.ops.binding import dtype_of, exactly, named
from qfunc.ops.definition import Call, Op, Rewrite, Trait, op


def gelu(input: Tensor, approximate: str) -> Tensor:
    """Call `F.gelu` with both arguments by position.

    >>> gelu(torch.zeros(2), "tanh")
    tensor([0., 0.])
    """
    return F.gelu(input, approximate=approximate)


def between(input: Tensor, min: Tensor | None, max: Tensor | None) -> Tensor:
    """Call `torch.clamp` with tensors as bounds, elementwise.

    >>> between(torch.tensor([0.0, 5.0]), torch.tensor([1.0, 2.0]), None)
    tensor([1., 5.])
    """
    return torch.clamp(input, min, max)


def _clip(low: float | None, high: float | None) -> Rewrite:
    def rewrite(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        given = named("input min max", args, {k.removesuffix("_val"): v for k, v in kwargs.items()})
        lo, hi = given.get("min", low), given.get("max", high)
        if any(isinstance(v, fx.Node) for v in (lo, hi)):
            return between, (given["input"], lo, hi)
        if any(isinstance(v, torch.Tensor) for v in (lo, hi)):
            return None
        hi = None if hi == math.inf else hi
        return (F.relu, (given["input"],)) if lo == 0 and hi is None else (op.call, (given["input"], lo, hi))

    return rewrite


def _clamp_max(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    return _clip(None, None)(op, args[:1], kwargs | dict(zip(("max",), args[1:], strict=True)))


def _rrelu(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    # In evaluation its slope is the mean of the two bounds.
    given = exactly("input lower upper training", args[:4], kwargs)
    if given is None or given.get("training", False):
        return None
    return op.call, (given["input"], (given.get("lower", 1 / 8) + given.get("upper", 1 / 3)) / 2)


def _softmax(third: str) -> Rewrite:
    # F.softmax and F.log_softmax take `_stacklevel` third, and `dtype` fourth; the method takes `dtype` third.
    def rewrite(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        given = dict(zip(("input", "dim", third, "dtype"), args, strict=False)) | kwargs
        dtypes = [v for v in (given.get("dtype"), given.get("")) if isinstance(v, torch.dtype)]
        if given.get("dim") is None or any(d != dtype_of(given["input"]) for d in dtypes):
            return None
        return op.call, (given["input"], given["dim"])

    return rewrite


_INPLACE = ("inplace",)
_CURVE = Trait.ELEMENTWISE | Trait.ACTIVATION | Trait.NEVER_BOOLEAN
_POSITIVE = _CURVE | Trait.NON_NEGATIVE | Trait.KEEPS_SIGN
_ODD = _CURVE | Trait.KEEPS_SIGN
_SCALED = _ODD | Trait.HOMOGENEOUS | Trait.SCALES_WITH_CHANNELS | Trait.KEEPS_CONSTANTS
_SOFT = Trait.NEVER_BOOLEAN | Trait.NON_NEGATIVE | Trait.KEEPS_SIGN

ROWS: tuple[Op, ...] = (
    op("relu", F.relu, "input", "relu", ignored=_INPLACE,
       traits=_SCALED | Trait.NON_NEGATIVE | Trait.CLAMPS | Trait.INTEGER_IF_INPUTS),
    op("clip", torch.clamp, "input min=None max=None",
       rewrites={"clamp": _clip(None, None), "clip": _clip(None, None), "clamp_min": _clip(None, None),
                 "clamp_max": _clamp_max, "relu6": _clip(0.0, 6.0), "hardtanh": _clip(-1.0, 1.0)},
       inplace_at={"relu6": 1, "hardtanh": 3},
       traits=_CURVE | Trait.CLAMPS | Trait.INTEGER_IF_INPUTS | Trait.POSITION_IF_INPUTS | Trait.KEEPS_LOW,
       example=lambda x: torch.clamp(x, -2, -1)),
    op("bound", between, "input min max", traits=Trait.ELEMENTWISE | Trait.NEVER_BOOLEAN,
       example=lambda x: between(x, torch.tensor(-0.7), torch.tensor(-0.1))),
    op("leaky_relu", F.leaky_relu, "input negative_slope=0.01", "leaky_relu", rewrites={"rrelu": _rrelu}, ignored=_INPLACE,
       inplace_at={"rrelu": 4}, traits=_SCALED, example=lambda x: F.leaky_relu(x, 0.3),
       onnx="LeakyRelu x alpha=negative_slope"),
    op("prelu", torch.prelu, "input weight", "prelu", traits=_SCALED, example=lambda x: torch.prelu(x, torch.tensor([0.3]))),
    op("sigmoid", torch.sigmoid, "input", "sigmoid", traits=_POSITIVE, onnx="Sigmoid x"),
    op("tanh", torch.tanh, "input", "tanh", traits=_ODD, onnx="Tanh x"),
    op("gelu", gelu, "input approximate='none'", "gelu", traits=_ODD, example=lambda x: gelu(x, "none"),
       onnx="Gelu x approximate=approximate"),
    op("silu", F.silu, "input", "silu", ignored=_INPLACE, traits=_ODD, onnx="Sigmoid x; Mul x ."),
    op("hardswish", F.hardswish, "input", "hardswish", ignored=_INPLACE, traits=_ODD, onnx="HardSwish x"),
    op("hardsigmoid", F.hardsigmoid, "input", "hardsigmoid", ignored=_INPLACE, traits=_POSITIVE,
       onnx="HardSigmoid x alpha=0.16666666666666666 beta=0.5"),
    op("elu", F.elu, "input alpha=1.0", "elu", ignored=_INPLACE, traits=_ODD, onnx="Elu x alpha=alpha"),
    op("celu", F.celu, "input alpha=1.0", "celu", ignored=_INPLACE, traits=_ODD, onnx="Celu x alpha=alpha"),
    op("selu", F.selu, "input", "selu", ignored=_INPLACE, traits=_ODD, onnx="Selu x"),
    op("softplus", F.softplus, "input beta=1.0 threshold=20.0", "softplus", traits=_POSITIVE),
    op("softsign", F.softsign, "input", "softsign", traits=_ODD, onnx="Softsign x"),
    op("softshrink", F.softshrink, "input lambd=0.5", "softshrink", traits=_ODD, onnx="Shrink x lambd=lambd bias=lambd"),
    op("hardshrink", F.hardshrink, "input lambd=0.5", "hardshrink", traits=_ODD, onnx="Shrink x lambd=lambd bias=0.0"),
    op("tanhshrink", F.tanhshrink, "input", "tanhshrink", traits=_ODD, onnx="Tanh x; Sub x ."),
    op("log_sigmoid", F.logsigmoid, "input", "logsigmoid", "log_sigmoid", traits=_CURVE, onnx="Neg x; Softplus .; Neg ."),
    op("threshold", F.threshold, "input threshold value", "threshold", "_threshold", ignored=_INPLACE,
       traits=_CURVE | Trait.INTEGER_IF_INPUTS, example=lambda x: F.threshold(x, 0.1, -0.3)),
    op("mish", F.mish, "input", "mish", ignored=_INPLACE, traits=_ODD, onnx="Mish x"),
    op("glu", F.glu, "input dim=-1", "glu", traits=Trait.NEVER_BOOLEAN | Trait.KEEPS_SIGN),
    op("softmax", torch.softmax, "input dim", rewrites={"softmax": _softmax("_stacklevel")}, traits=_SOFT,
       example=lambda x: torch.softmax(x, 1), onnx="Softmax x axis=dim"),
    op("log_softmax", torch.log_softmax, "input dim", rewrites={"log_softmax": _softmax("")}, traits=Trait.NEVER_BOOLEAN,
       example=lambda x: torch.log_softmax(x, 1), onnx="LogSoftmax x axis=dim"),
    op("softmin", F.softmin, "input dim", "softmin", traits=_SOFT, example=lambda x: F.softmin(x, 1)),
)  # fmt: skip
