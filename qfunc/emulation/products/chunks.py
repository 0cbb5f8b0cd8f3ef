"""Emulate products of OpenVINO with weights in blocks."""

from __future__ import annotations

from torch import fx

from qfunc.emulation.context import UnitContext
from qfunc.graph.constants import read_attr
from qfunc.numerics.kernels.requantize import clamp_to_bounds
from qfunc.numerics.sums.chunks import chunked_product
from qfunc.ops.node import channel_axis, slots
from qfunc.specs import DynamicProduct, PerBlock


def brgemm_product(job: UnitContext, arithmetic: DynamicProduct) -> fx.Node:
    """Return the node of a product with `BrgemmChunks`."""
    tensors, shared = dict(slots(job.root)), arithmetic.input.scale.shared
    encoding = job.partition.encoding(tensors["weight"], job.root)
    assert isinstance(shared, PerBlock)  # DynamicProduct requires it
    assert encoding is not None
    scale, zero = encoding.qparams.scale.float(), encoding.qparams.zero_point.float()
    codes = encoding.codes(read_attr(job.partition.network, tensors["weight"])).float()
    held = [codes, scale, zero]
    if channel_axis(job.root) % 2:
        held = [tensor.T for tensor in held]
    codes, scale, zero = held
    codes = codes - zero.repeat_interleave(codes.shape[1] // zero.shape[1], 1)
    names = (str(tensors["weight"].target), f"{job.unit.path}.weight_scale")
    nodes = [job.emitter.constant(t.contiguous(), name) for t, name in zip((codes, scale), names, strict=True)]
    x = job.real(tensors["input"], job.root)
    bias = None if "bias" not in tensors else job.real(tensors["bias"], job.root)
    if not (bounds := job.bounds()):
        return job.emitter.call(chunked_product, x, *nodes, bias, shared.size, name=job.name, result=True)
    value = job.emitter.call(chunked_product, x, *nodes, bias, shared.size, name=f"{job.name}_value")
    return job.emitter.call(clamp_to_bounds, value, bounds, name=job.name, result=True)


__all__ = ["brgemm_product"]
