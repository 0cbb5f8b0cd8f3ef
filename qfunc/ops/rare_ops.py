"""Canonical ops that networks seldom have and that need an ONNX spelling only: one row each, as in `float_ops`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def plus(input: Tensor, other: Tensor | float, alpha: float) -> Tensor:
    """input + alpha * other.

    >>> plus(torch.ones(1), torch.ones(1), -2)
    tensor([-1.])
    """
    return torch.add(input, other, alpha=alpha)


def truncated(input: Tensor, other: Tensor | float) -> Tensor:
    """input / other, rounded towards 0.

    >>> truncated(torch.tensor([-7.0]), 2)
    tensor([-3.])
    """
    return torch.div(input, other, rounding_mode="trunc")


def between(input: Tensor, min: Tensor | None, max: Tensor | None) -> Tensor:
    """`torch.clamp` by tensors, entry by entry.

    >>> between(torch.tensor([0.0, 5.0]), torch.tensor([1.0, 2.0]), None)
    tensor([1., 5.])
    """
    return torch.clamp(input, min, max)


def rounded(input: Tensor, decimals: int) -> Tensor:
    """Rounded half to even at a decimal place.

    >>> rounded(torch.tensor([125.0]), -1)
    tensor([120.])
    """
    return torch.round(input, decimals=decimals)


def finite(input: Tensor, nan: float | None, posinf: float | None, neginf: float | None) -> Tensor:
    """`torch.nan_to_num`; None stands for the ends of the type, and for 0 where it is NaN.

    >>> finite(torch.tensor([torch.nan, torch.inf]), 1.0, 2.0, None)
    tensor([1., 2.])
    """
    return torch.nan_to_num(input, nan, posinf, neginf)


def variance_mean(input: Tensor, dim: Sequence[int] | None, correction: float, keepdim: bool) -> tuple[Tensor, Tensor]:
    """`torch.var_mean` with every argument by position.

    >>> variance_mean(torch.tensor([1.0, 3.0]), None, 1, False)
    (tensor(2.), tensor(2.))
    """
    variance, mean = torch.var_mean(input, dim if dim is None else list(dim), correction=correction, keepdim=keepdim)
    return variance, mean


def deviation_mean(input: Tensor, dim: Sequence[int] | None, correction: float, keepdim: bool) -> tuple[Tensor, Tensor]:
    """`torch.std_mean` with every argument by position.

    >>> deviation_mean(torch.tensor([1.0, 3.0]), None, 0, False)
    (tensor(1.), tensor(2.))
    """
    deviation, mean = torch.std_mean(input, dim if dim is None else list(dim), correction=correction, keepdim=keepdim)
    return deviation, mean


def antialiased(
    input: Tensor,
    size: Sequence[int] | int | None,
    scale_factor: Sequence[float] | float | None,
    mode: str,
    align_corners: bool,
    recompute_scale_factor: bool | None,
) -> Tensor:
    """`F.interpolate` with antialias=True.

    >>> antialiased(torch.tensor([[[[0.0, 1.0, 2.0, 3.0]]]]), (1, 2), None, "bilinear", False, None)
    tensor([[[[0.7143, 2.2857]]]])
    """
    given: dict[str, Any] = {"scale_factor": scale_factor, "recompute_scale_factor": recompute_scale_factor}
    return F.interpolate(input, size, mode=mode, align_corners=align_corners, antialias=True, **given)


_LP_POOL = "input norm_type kernel_size stride=None ceil_mode=False"

RARE_OPS = (
    ("scaled_add", plus, "input other alpha"),
    ("trunc_divide", truncated, "input other"),
    ("bound", between, "input min max"),
    ("round_decimals", rounded, "input decimals"),
    ("nan_to_num", finite, "input nan=None posinf=None neginf=None", "nan_to_num"),
    ("logaddexp", torch.logaddexp, "input other", "logaddexp"),
    ("hypot", torch.hypot, "input other", "hypot"),
    ("atan2", torch.atan2, "input other", "atan2", "arctan2"),
    ("xlogy", torch.xlogy, "input other", "xlogy", "special_xlogy"),
    ("var_mean", variance_mean, "input dim correction keepdim"),
    ("std_mean", deviation_mean, "input dim correction keepdim"),
    ("im2col", F.unfold, "input kernel_size dilation=1 padding=0 stride=1", "im2col"),
    ("col2im", F.fold, "input output_size kernel_size dilation=1 padding=0 stride=1", "fold", "col2im"),
    ("antialias", antialiased, "input size scale_factor mode align_corners recompute_scale_factor"),
    ("lp_pool", F.lp_pool1d, _LP_POOL, "lp_pool1d"),
    ("lp_pool", F.lp_pool2d, _LP_POOL, "lp_pool2d"),
)
"""(kind, callable, parameters, names that spell it)."""
