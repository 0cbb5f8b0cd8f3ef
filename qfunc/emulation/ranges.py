"""Emulate convolutions whose scales are given by the ends of ranges: OpenVINO's."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from qfunc.emulation.context import UnitContext
from qfunc.numerics.kernels.ranges import range_step, requantize_by_range, requantize_sums_by_range, weight_codes
from qfunc.ops.node import slots


def write_by_range(job: UnitContext, acc: fx.Node, product: Tensor, bias: Tensor | None) -> fx.Node:
    """Return the node of a convolution's codes: see `FloatRequantize(by_range=True)` of `specs`."""
    zero, low, high = job.range()
    fmt, path = job.output.format, job.unit.path
    m = job.emitter.constant(range_product(job, product), f"{path}.multiplier")
    bounds, other = job.fused_sum()
    clipped = any(most is not None for _, most in job.bounds())
    if bias is None and other is None and not clipped:
        return job.emitter.call(
            requantize_sums_by_range, acc, m, job.output.scale, zero, (fmt.qmin, fmt.qmax), (low, high),
            name=job.name, result=True,
        )  # fmt: skip
    offset = job.emitter.constant(torch.zeros(()) if bias is None else bias, f"{path}.offset")
    return job.emitter.call(
        requantize_by_range, acc, m, offset, job.output.scale, zero, (fmt.qmin, fmt.qmax), (low, high), clipped, bounds, other,
        name=job.name, result=True,
    )  # fmt: skip


def range_product(job: UnitContext, product: Tensor) -> Tensor:
    """Return s_x s_w in float32, each scale the step of its range, in the shape of `product`."""
    encodings = {s: job.partition.encoding(n, job.root) for s, n in slots(job.root) if s in ("input", "weight")}
    x, weight = encodings["input"], encodings["weight"]
    assert x is not None
    assert weight is not None
    step = range_step(x.scale, x.zero_point, x.format.qmin, x.format.qmax)
    codes = weight_codes(weight.format.qmin, weight.format.qmax)
    return step * range_step(weight.qparams.scale, weight.qparams.zero_point.long(), *codes).reshape(product.shape)


__all__ = ["range_product", "write_by_range"]
