"""Images: resizing, sampling, blocks of channels and space, and windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qfunc.ops.binding import bind, named
from qfunc.ops.definition import Call, Op, Rewrite, Trait, op


def antialiased(
    input: Tensor,
    size: Sequence[int] | int | None,
    scale_factor: Sequence[float] | float | None,
    mode: str,
    align_corners: bool,
    recompute_scale_factor: bool | None,
) -> Tensor:
    """Call `F.interpolate` with antialias=True.

    >>> antialiased(torch.tensor([[[[0.0, 1.0, 2.0, 3.0]]]]), (1, 2), None, "bilinear", False, None)
    tensor([[[[0.7143, 2.2857]]]])
    """
    given: dict[str, Any] = {"scale_factor": scale_factor, "recompute_scale_factor": recompute_scale_factor}
    return F.interpolate(input, size, mode=mode, align_corners=align_corners, antialias=True, **given)


_SMOOTH = ("linear", "bilinear", "bicubic", "trilinear")


def _interpolate(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    smooth = kwargs.pop("antialias", False) or any(args[6:])
    call = bind(op, args[:6], kwargs)
    if call is None:
        return None
    x, size, factor, mode, corners, recompute = call[1]
    target = antialiased if smooth else call[0]
    return target, (x, size, factor, mode, bool(corners) if mode in _SMOOTH else None, recompute)


def _upsample(mode: str) -> Rewrite:
    def rewrite(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        names = ("input", "output_size", *(("align_corners",) if mode in _SMOOTH else ()), "scale_factors")
        given = named(" ".join(names), args, kwargs)
        size, factors = given.get("output_size"), given.get("scale_factors")
        if len(args) > len(names) or (factors is not None and not isinstance(factors, list | tuple)):
            return None
        return op.call, (given["input"], size, None if size else factors, mode, given.get("align_corners"), None)

    return rewrite


def _grid_sampler(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    if len(args) != 5 or kwargs:
        return None
    mode, padding = ("bilinear", "nearest", "bicubic")[args[2]], ("zeros", "border", "reflection")[args[3]]
    return op.call, (*args[:2], mode, padding, args[4])


_SPELLED = {
    **{f"upsample_nearest{n}d": _upsample("nearest") for n in (1, 2, 3)},
    **{f"_upsample_nearest_exact{n}d": _upsample("nearest-exact") for n in (1, 2, 3)},
    "upsample_linear1d": _upsample("linear"), "upsample_bilinear2d": _upsample("bilinear"),
    "upsample_bicubic2d": _upsample("bicubic"), "upsample_trilinear3d": _upsample("trilinear"),
}  # fmt: skip
_RESIZE = "input size=None scale_factor=None mode='nearest' align_corners=None recompute_scale_factor=None"
_COPY = Trait.MOVES_VALUES | Trait.KEEPS_SIGN | Trait.HOMOGENEOUS | Trait.INTEGER_IF_INPUTS


def _widened(of: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: of(x[:, :1].expand(-1, 4, -1, -1))


ROWS: tuple[Op, ...] = (
    op("resize", F.interpolate, _RESIZE, rewrites={"interpolate": _interpolate, **_SPELLED},
       traits=Trait.HOMOGENEOUS | Trait.NEVER_BOOLEAN,
       example=lambda x: F.interpolate(x, scale_factor=2.0, mode="bicubic", align_corners=False)),
    op("antialias", antialiased, "input size scale_factor mode align_corners recompute_scale_factor",
       rewrites={"_upsample_bilinear2d_aa": _upsample("bilinear"), "_upsample_bicubic2d_aa": _upsample("bicubic")},
       traits=Trait.HOMOGENEOUS | Trait.NEVER_BOOLEAN,
       example=lambda x: antialiased(x, (7, 9), None, "bicubic", False, None)),
    op("grid_sample", F.grid_sample, "input grid mode='bilinear' padding_mode='zeros' align_corners=None", "grid_sample",
       rewrites={"grid_sampler": _grid_sampler}, traits=Trait.HOMOGENEOUS | Trait.NEVER_BOOLEAN,
       example=lambda x: F.grid_sample(x, torch.linspace(-1.2, 1.2, 48).reshape(2, 3, 4, 2), "bicubic", "zeros", False)),
    op("pixel_shuffle", torch.pixel_shuffle, "input upscale_factor", "pixel_shuffle", traits=_COPY,
       example=_widened(lambda x: torch.pixel_shuffle(x, 2))),
    op("pixel_unshuffle", torch.pixel_unshuffle, "input downscale_factor", "pixel_unshuffle", traits=_COPY,
       example=lambda x: torch.pixel_unshuffle(x[:, :, :4], 2)),
    op("im2col", F.unfold, "input kernel_size dilation=1 padding=0 stride=1", "im2col",
       traits=Trait.KEEPS_SIGN | Trait.HOMOGENEOUS, example=lambda x: F.unfold(x, 2, 1, 1)),
    op("col2im", F.fold, "input output_size kernel_size dilation=1 padding=0 stride=1", "fold", "col2im",
       traits=Trait.KEEPS_SIGN | Trait.HOMOGENEOUS,
       example=lambda x: F.fold(x.reshape(2, 18, 5)[:, :4], (2, 6), 2)),
    op("windows", torch.Tensor.unfold, "input dimension size step", "unfold", traits=_COPY | Trait.VIEW,
       example=lambda x: x.unfold(3, 2, 2)),
)  # fmt: skip
