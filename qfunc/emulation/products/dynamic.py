"""Emulate products whose input is quantized at run time."""

from __future__ import annotations

import torch
from torch import fx

from qfunc.emulation.context import UnitContext
from qfunc.emulation.products.chunks import brgemm_product
from qfunc.emulation.products.minimums import DTYPES, sums_with_minimums, weight_of
from qfunc.emulation.products.registers import register_product
from qfunc.numerics.scales import divisor
from qfunc.numerics.sums.dynamic import (
    block_sums,
    flushed,
    input_codes,
    input_scales,
    input_zero_points,
    multipliers,
    scaled_sums,
    weight_sums,
)
from qfunc.ops.node import slots
from qfunc.specs import BrgemmChunks, DynamicProduct, Int, PerBlock, RegisterLanes


def dynamic_product(job: UnitContext, arithmetic: DynamicProduct) -> fx.Node:
    """Return the node of a product by `DynamicProduct`: its r, z, q_x, s_x and v are nodes before it."""
    if isinstance(arithmetic.lanes, RegisterLanes):
        return register_product(job, arithmetic)
    if isinstance(arithmetic.lanes, BrgemmChunks):
        return brgemm_product(job, arithmetic)
    tensors, scheme, path = dict(slots(job.root)), arithmetic.input, job.unit.path
    fmt, shared, flushes = scheme.format, scheme.scale.shared, not arithmetic.denormals
    assert isinstance(fmt, Int)  # DynamicProduct requires it
    x = job.real(tensors["input"], job.root)
    size = shared.size if isinstance(shared, PerBlock) else None
    steps = divisor(scheme) if scheme.symmetric else float(fmt.qmax - fmt.qmin)
    span = (size, steps, scheme.symmetric, arithmetic.multiplier)
    r = job.emitter.call(multipliers, x, *span, flushes, name=f"{job.name}_multiplier")
    z = None
    if scheme.zero_point is not None:
        ends = (fmt.qmin, fmt.qmax, scheme.zero_point.rounding, scheme.zero_point.nudge == "nearest")
        z = job.emitter.call(input_zero_points, x, r, size, *ends, flushes, name=f"{job.name}_zero_point")
    codes = (fmt.qmin, fmt.qmax, scheme.rounding)
    q = job.emitter.call(input_codes, x, r, z, *codes, flushes, name=f"{job.name}_input_codes")
    dtype = DTYPES[scheme.scale.format]
    s_x = job.emitter.call(input_scales, x, r, *span, dtype, flushes, name=f"{job.name}_input_scale")
    weight = weight_of(job, tensors["weight"])
    inside = s_x if arithmetic.scales == "inside" else None
    if any(
        part is not None
        for part in (weight.integers, arithmetic.minimums, arithmetic.offset, arithmetic.groups, arithmetic.tiles)
    ):
        single = None
        if arithmetic.minimums is not None and arithmetic.minimums.rounded is not None:
            single = job.emitter.call(input_scales, x, r, *span, "float32", flushes, name=f"{job.name}_input_scale_float32")
        v = sums_with_minimums(job, arithmetic, weight, (q, s_x, single))
    else:
        named = ((weight.codes, str(tensors["weight"].target)), (weight.scale, f"{path}.weight_scale"))
        nodes = [job.emitter.constant(tensor, name) for tensor, name in named]
        start = None
        if arithmetic.zero_point is not None and z is not None:
            sums = weight_sums(weight.codes, weight.scale, arithmetic.zero_point.run)
            k = job.emitter.constant(flushed(sums, flushes), f"{path}.sums")
            if offset := arithmetic.zero_point.offset:
                q, z = (job.emitter.call(torch.add, t, offset, name=f"{t.name}_unsigned") for t in (q, z))
            start, z = job.emitter.call(torch.mul, k, z, name=f"{job.name}_start"), None
        lanes = arithmetic.lanes
        order = (lanes.count, lanes.run, arithmetic.fma, flushes, start, lanes.order, None, None, None, lanes.rest)
        v = job.emitter.call(block_sums, q, z, inside, *nodes, *order, name=f"{job.name}_sums")
    bias = None if "bias" not in tensors else job.real(tensors["bias"], job.root)
    after = s_x if inside is None else None
    return job.emitter.call(
        scaled_sums, v, after, bias, job.bounds(), arithmetic.clamps, flushes, arithmetic.fused_bias, name=job.name, result=True
    )
