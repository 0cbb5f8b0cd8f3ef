"""Emulate convolutions whose scales are given by the ends of ranges: OpenVINO's."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from qfunc.emulation.builder import Codes
from qfunc.emulation.context import UnitContext
from qfunc.numerics.kernels.ranges import SMALLEST_BIAS, add_by_range, range_step, requantize_by_range, weight_codes
from qfunc.ops.node import slots


def write_by_range(job: UnitContext, acc: fx.Node, product: Tensor, bias: Tensor | None) -> fx.Node:
    """Return the node of a convolution's codes: see `FloatRequantize(by_range=True)` of `specs`."""
    zero, low, high = job.range()
    output = (job.output.scale, zero, (job.output.format.qmin, job.output.format.qmax), (low, high))
    m = job.emitter.constant(range_product(job, product), f"{job.unit.path}.multiplier")
    bounds, edge = job.addend()
    clipped = any(most is not None for _, most in job.bounds())
    offset = job.emitter.constant(range_bias(bias), f"{job.unit.path}.offset")
    if edge is not None and isinstance(added := job.inputs[edge[0].name], Codes):
        encoding = added.encoding
        other = (added.node, encoding.scale, encoding.zero_point, encoding.format.qmin, encoding.format.qmax)
        return job.emitter.call(add_by_range, acc, m, offset, bounds, other, *output, name=job.name, result=True)
    real = None if edge is None else job.real(*edge)
    return job.emitter.call(requantize_by_range, acc, m, offset, *output, clipped, bounds, real, name=job.name, result=True)


def range_product(job: UnitContext, product: Tensor) -> Tensor:
    """Return s_x s_w in float32, each scale the step of its range, in the shape of `product`."""
    encodings = {s: job.partition.encoding(n, job.root) for s, n in slots(job.root) if s in ("input", "weight")}
    x, weight = encodings["input"], encodings["weight"]
    assert x is not None
    assert weight is not None
    step = range_step(x.scale, x.zero_point, x.format.qmin, x.format.qmax)
    codes = weight_codes(weight.format.qmin, weight.format.qmax)
    return step * range_step(weight.qparams.scale, weight.qparams.zero_point.long(), *codes).reshape(product.shape)


def range_bias(bias: Tensor | None) -> Tensor:
    """Return the bias that the file has.

    >>> range_bias(None).item() > 0
    True
    """
    return bias if bias is not None and bool(bias.any()) else torch.tensor(SMALLEST_BIAS)


__all__ = ["range_bias", "range_product", "write_by_range"]
