"""Pools: maxima and means over windows, over a grid of parts, or over the whole image."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qfunc.ops.binding import bind, exactly
from qfunc.ops.definition import Call, Op, Trait, op


def global_avg_pool(input: Tensor, keepdim: bool, dim: tuple[int, int] = (-2, -1)) -> Tensor:
    """Return the mean over height and width.

    >>> global_avg_pool(torch.ones(2, 3, 5, 7), True).shape
    torch.Size([2, 3, 1, 1])
    """
    return input.mean(dim, keepdim)


def _pool(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    # stride=None and stride=[] mean the kernel's size; a pool with indices is another op.
    length = len(op.parameters)
    if kwargs.pop("return_indices", False) or any(args[length:]):
        return None
    call = bind(op, args[:length], kwargs)
    return call and (call[0], (*call[1][:2], call[1][2] or call[1][1], *call[1][3:]))


def _average(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    # divisor_override=4 of windows of 2 x 2 is the mean that counts padding, unless windows reach beyond it by ceil_mode.
    call = _pool(op, args, kwargs)
    if call is None:
        return None
    *rest, kernel, stride, padding, ceil_mode, _, divisor = call[1]
    lengths = kernel if isinstance(kernel, tuple | list) else (kernel,)
    lengths = lengths * (op.spatial or 1) if len(lengths) == 1 else lengths
    is_size = ceil_mode is False and all(type(n) is int for n in lengths) and divisor == math.prod(lengths)
    return (call[0], (*rest, kernel, stride, padding, ceil_mode, True, None)) if is_size else call


def _adaptive_avg(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    call = bind(op, args, kwargs)
    return (global_avg_pool, (call[1][0], True, (-2, -1))) if call and call[1][1] in (1, (1, 1), [1, 1]) else call


def _adaptive_max(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    if kwargs.pop("return_indices", False) or any(args[2:]):
        return None
    given = exactly("input output_size", args[:2], kwargs)
    return None if given is None else (op.call, (given["input"], given["output_size"]))


_MAX = "input kernel_size stride=None padding=0 dilation=1 ceil_mode=False"
_AVG = "input kernel_size stride=None padding=0 ceil_mode=False count_include_pad=True"
_LP_POOL = "input norm_type kernel_size stride=None ceil_mode=False"
_WINDOW = Trait.KEEPS_SIGN | Trait.HOMOGENEOUS | Trait.NEVER_BOOLEAN
_INTEGER = Trait.INTEGER_IF_INPUTS
_SCALED = _WINDOW | Trait.SCALES_WITH_CHANNELS | Trait.KEEPS_CONSTANTS
_MEAN = _SCALED | Trait.AVERAGES

ROWS: tuple[Op, ...] = (
    op("max_pool", torch.max_pool1d, _MAX, rewrites={"max_pool1d": _pool}, spatial=1, traits=_SCALED,
       example=lambda x: torch.max_pool1d(x[0], 2, 1, 1)),
    op("max_pool", torch.max_pool2d, _MAX, rewrites={"max_pool2d": _pool}, spatial=2, traits=_SCALED | _INTEGER,
       example=lambda x: torch.max_pool2d(x, 2, 1, 1)),
    op("max_pool", torch.max_pool3d, _MAX, rewrites={"max_pool3d": _pool}, spatial=3, traits=_SCALED | _INTEGER,
       example=lambda x: torch.max_pool3d(x, 2, 1, 1)),
    op("avg_pool", F.avg_pool1d, _AVG, rewrites={"avg_pool1d": _pool}, spatial=1, traits=_MEAN | _INTEGER,
       example=lambda x: F.avg_pool1d(x[0], 3)),
    op("avg_pool", F.avg_pool2d, _AVG + " divisor_override=None", rewrites={"avg_pool2d": _average}, spatial=2,
       traits=_MEAN | _INTEGER,
       example=lambda x: F.avg_pool2d(x, 3)),
    op("avg_pool", F.avg_pool3d, _AVG + " divisor_override=None", rewrites={"avg_pool3d": _average}, spatial=3,
       traits=_MEAN | _INTEGER,
       example=lambda x: F.avg_pool3d(x, 3)),
    op("global_avg_pool", global_avg_pool, "input keepdim dim=(-2,-1)", "global_avg_pool", traits=_MEAN,
       example=lambda x: global_avg_pool(x, False)),
    op("adaptive_avg_pool", F.adaptive_avg_pool1d, "input output_size", "adaptive_avg_pool1d", spatial=1, traits=_MEAN,
       example=lambda x: F.adaptive_avg_pool1d(x[0], 2)),
    op("adaptive_avg_pool", F.adaptive_avg_pool2d, "input output_size", rewrites={"adaptive_avg_pool2d": _adaptive_avg},
       spatial=2, traits=_MEAN, example=lambda x: F.adaptive_avg_pool2d(x, 2)),
    op("adaptive_avg_pool", F.adaptive_avg_pool3d, "input output_size", "adaptive_avg_pool3d", spatial=3, traits=_MEAN,
       example=lambda x: F.adaptive_avg_pool3d(x, 2)),
    op("adaptive_max_pool", F.adaptive_max_pool1d, "input output_size", rewrites={"adaptive_max_pool1d": _adaptive_max},
       spatial=1, traits=_WINDOW, example=lambda x: F.adaptive_max_pool1d(x[0], 2)),
    op("adaptive_max_pool", F.adaptive_max_pool2d, "input output_size", rewrites={"adaptive_max_pool2d": _adaptive_max},
       spatial=2, traits=_WINDOW, example=lambda x: F.adaptive_max_pool2d(x, 2)),
    op("lp_pool", F.lp_pool1d, _LP_POOL, "lp_pool1d", spatial=1, traits=_WINDOW, example=lambda x: F.lp_pool1d(x[0], 1, 2)),
    op("lp_pool", F.lp_pool2d, _LP_POOL, "lp_pool2d", spatial=2, traits=_WINDOW, example=lambda x: F.lp_pool2d(x, 1, 2)),
)  # fmt: skip
