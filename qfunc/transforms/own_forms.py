"""Units whose arithmetic has a form of its own: slopes, means, pools of codes, curves, interpolation."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from qfunc.errors import EmulationError
from qfunc.graph.vocabulary import attribute, slots
from qfunc.numerics import fixed_curves, fixed_softmax, integer
from qfunc.numerics.bilinear import bilinear_codes
from qfunc.numerics.fixed_point import fixed_multiplier
from qfunc.specs import AverageCodes, Bilinear, FixedBits, FixedPoint, FloatMultiplier
from qfunc.transforms.emitter import Codes
from qfunc.transforms.job import Job
from qfunc.transforms.pools import each_of, rank_of


def _given(job: Job) -> Codes:
    return job.given(slots(job.root)[0][1])


def slopes(job: Job, arithmetic: FixedPoint | FloatMultiplier) -> fx.Node:
    """The node of a leaky_relu or prelu in fixed point, or of a prelu by two float32 multipliers."""
    x = _given(job)
    centred = below = job.emitter.call(operator.sub, x.node, x.coding.zero_point, name=f"{job.name}_centred")
    scale = torch.tensor(x.coding.scale, dtype=torch.float64) / job.output.scale
    if job.unit.kind == "leaky_relu":
        slope = scale * float(torch.tensor(float(attribute(job.root, "negative_slope"))))
    else:
        weight = dict(slots(job.root))["weight"]
        coding = job.partition.coding(weight, job.root)
        assert coding is not None
        own = (job.constant_codes(weight, coding) - coding.qparams.zero_point).float()
        held = job.emitter.constant(own, str(weight.target))
        below = job.emitter.call(along_channels, centred, held, name=f"{job.name}_sloped")
        slope = scale * coding.qparams.scale.double().reshape(())
        if isinstance(arithmetic, FloatMultiplier):
            s_x, s_y = torch.tensor(x.coding.scale), torch.tensor(job.output.scale)
            each = [float(s_x / s_y), float(s_x * coding.qparams.scale.float().reshape(()) / s_y)]
            return job.emitter.call(sloped, centred, below, each, *job.range(), arithmetic.rounding, name=job.name, result=True)
    assert isinstance(arithmetic, FixedPoint)
    pairs = [fixed_multiplier(s, arithmetic.bits) for s in (scale, slope)]
    m, e = ([job.emitter.constant(p[i], f"{job.unit.path}.{n}_{k}") for k, p in enumerate(pairs)]
            for i, n in enumerate(("multiplier", "shift")))  # fmt: skip
    return job.emitter.call(
        fixed_curves.two_slopes, centred, below, m, e, list(arithmetic.steps), *job.range(), name=job.name, result=True
    )


def sloped(x: Tensor, below: Tensor, multipliers: list[float], zero_point: int, low: int, high: int, rounding: str) -> Tensor:
    """Codes of a prelu: requantize(x, M), and where x < 0 requantize(x * slope, M of the slope), in float32."""
    above, under = (
        integer.requantize(v, torch.tensor(m), zero_point, low, high, rounding, "after")
        for v, m in zip((x, below), multipliers, strict=True)
    )
    return torch.where(x >= 0, above, under)


def along_channels(x: Tensor, slope: Tensor) -> Tensor:
    """x times a number for each channel, axis 1, or one for all."""
    return x * (slope.reshape(-1, *[1] * (x.ndim - 2)) if x.ndim > 1 else slope)


def bits(job: Job, arithmetic: FixedBits) -> fx.Node:
    """The node of a leaky_relu by integers with a fixed number of bits behind the point."""
    x = _given(job)
    centred = job.emitter.call(operator.sub, x.node, x.coding.zero_point, name=f"{job.name}_centred")
    scale = torch.tensor(x.coding.scale) / torch.tensor(job.output.scale)
    both = (scale, scale * float(attribute(job.root, "negative_slope")))
    m = [int(torch.round(s * float(1 << arithmetic.bits))) for s in both]
    return job.emitter.call(
        fixed_curves.fixed_bits, centred, m, arithmetic.bits, arithmetic.rounding, *job.range(), name=job.name, result=True
    )


def mean(job: Job, arithmetic: FixedPoint | FloatMultiplier) -> fx.Node:
    """The node of a mean over some axes."""
    x, dims = _given(job), attribute(job.root, "dim")
    dims = [dims] if isinstance(dims, int) else list(dims)
    keep = bool(attribute(job.root, "keepdim"))
    if isinstance(arithmetic, FixedPoint):
        ratio = float(torch.tensor(x.coding.scale, dtype=torch.float64) / job.output.scale)
        return job.emitter.call(
            fixed_curves.mean_fixed, x.node, x.coding.zero_point, dims, keep, ratio, list(arithmetic.steps), *job.range(),
            name=job.name, result=True,
        )  # fmt: skip
    return job.emitter.call(
        mean_scaled, x.node, x.coding.zero_point, x.coding.scale, dims, keep, job.output.scale, *job.range(),
        arithmetic.rounding, arithmetic.zero_point, name=job.name, result=True,
    )  # fmt: skip


def mean_scaled(
    codes: Tensor, zero_in: int, scale_in: float, dims: list[int], keep: bool, scale: float, zero_point: int, low: int,
    high: int, rounding: str, place: str,
) -> Tensor:  # fmt: skip
    """Codes of a mean: requantize(sum(q - z_x), M) with M = float32(s_x / float32(s_y * n))."""
    total = (codes - zero_in).double().sum(dims, keepdim=keep)
    count = torch.tensor(float(codes.numel() // max(total.numel(), 1)))
    multiplier = torch.tensor(scale_in) / (torch.tensor(scale) * count)
    return integer.requantize(total, multiplier, zero_point, low, high, rounding, place)


def average_codes(job: Job, arithmetic: AverageCodes) -> fx.Node:
    """The node of an average pool of codes.

    Raises:
        EmulationError: more axes than two.
    """
    x, rank = _given(job), rank_of(job.root)
    if rank > 2:
        do = "Pool images or signals."
        raise EmulationError(where=f"unit {job.unit.path!r}", found="a pool over 3 axes", wanted="one or two", do=do)
    if job.unit.kind == "adaptive_avg_pool":
        size = each_of(attribute(job.root, "output_size"), rank)
        return job.emitter.call(
            average_to, x.node, size, x.coding.zero_point, arithmetic.rounding, *job.range()[1:], arithmetic.centred,
            name=job.name, result=True,
        )  # fmt: skip
    kernel, stride, padding = (each_of(attribute(job.root, n) or attribute(job.root, "kernel_size"), rank)
                               for n in ("kernel_size", "stride", "padding"))  # fmt: skip
    padding = padding if attribute(job.root, "padding") else [0] * rank
    return job.emitter.call(
        fixed_curves.average_inside, x.node, kernel, stride, padding, attribute(job.root, "ceil_mode"),
        attribute(job.root, "count_include_pad"), x.coding.zero_point, arithmetic.rounding, *job.range()[1:],
        arithmetic.centred, name=job.name, result=True,
    )  # fmt: skip


def average_to(codes: Tensor, size: list[int], fill: int, rounding: str, low: int, high: int, centred: bool) -> Tensor:
    """Codes averaged over windows that do not overlap, to a size that divides theirs."""
    kernel = [n // s for n, s in zip(codes.shape[2:], size, strict=True)]
    return fixed_curves.average_inside(codes, kernel, kernel, [0] * len(size), False, True, fill, rounding, low, high, centred)


def hard_swish(job: Job) -> fx.Node:
    """The node of a `specs.HardSwish16` unit."""
    x = _given(job)
    return job.emitter.call(
        fixed_curves.hard_swish16, x.node, x.coding.zero_point, x.coding.scale, job.output.scale, *job.range(),
        name=job.name, result=True,
    )  # fmt: skip


def softmax(job: Job) -> fx.Node:
    """The node of a `specs.SoftmaxFloat` unit."""
    x = _given(job)
    return job.emitter.call(
        integer.softmax_float, x.node, attribute(job.root, "dim"), x.coding.scale, job.output.scale, *job.range(),
        name=job.name, result=True,
    )  # fmt: skip


def softmax_fixed(job: Job) -> fx.Node:
    """The node of a `specs.SoftmaxFixed` unit."""
    x = _given(job)
    return job.emitter.call(
        fixed_softmax.softmax_fixed, x.node, attribute(job.root, "dim"), x.coding.scale, *job.range()[1:],
        name=job.name, result=True,
    )  # fmt: skip


def bilinear(job: Job, arithmetic: Bilinear) -> fx.Node:
    """The node of a `specs.Bilinear` unit."""
    x = _given(job)
    given = [attribute(job.root, n) for n in ("size", "scale_factor")]
    return job.emitter.call(
        resized, x.node, *given, bool(attribute(job.root, "align_corners")), arithmetic.positions, arithmetic.bits,
        name=job.name, result=True,
    )  # fmt: skip


def resized(codes: Tensor, size: Any, factor: Any, corners: bool, positions: str, bits: int) -> Tensor:
    """Codes of bilinear resizing to a size, or by a factor."""
    wanted = F.interpolate(codes[:1, :1], size, factor).shape[-2:]
    return bilinear_codes(codes, (wanted[0], wanted[1]), corners, positions, bits)


__all__ = ["average_codes", "bilinear", "bits", "hard_swish", "mean", "slopes", "softmax", "softmax_fixed"]
