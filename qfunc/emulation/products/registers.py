"""Emulate products of ONNX Runtime's MatMulNBits."""

from __future__ import annotations

from torch import Tensor, fx

from qfunc.emulation.context import UnitContext
from qfunc.graph.constants import read_attr
from qfunc.numerics.kernels.requantize import clamp_to_bounds
from qfunc.numerics.sums.blocks import block_product, stored_bits
from qfunc.ops.node import channel_axis, slots
from qfunc.specs import DynamicProduct, PerBlock


def register_product(job: UnitContext, arithmetic: DynamicProduct) -> fx.Node:
    """Return the node of a product with `RegisterLanes`."""
    tensors, shared = dict(slots(job.root)), arithmetic.input.scale.shared
    assert isinstance(shared, PerBlock)  # DynamicProduct requires it
    held, bits = stored_weight(job, job.root)
    names = [str(tensors["weight"].target), f"{job.unit.path}.weight_scale", f"{job.unit.path}.weight_zero_point"]
    nodes = [job.emitter.constant(tensor.contiguous(), name) for tensor, name in zip(held, names, strict=True)]
    x = job.real(tensors["input"], job.root)
    bias = None if "bias" not in tensors else job.real(tensors["bias"], job.root)
    if not (bounds := job.bounds()):
        return job.emitter.call(block_product, x, *nodes, bias, shared.size, bits, name=job.name, result=True)
    value = job.emitter.call(block_product, x, *nodes, bias, shared.size, bits, name=f"{job.name}_value")
    return job.emitter.call(clamp_to_bounds, value, bounds, name=job.name, result=True)


def stored_weight(job: UnitContext, node: fx.Node) -> tuple[list[Tensor], int]:
    """Return the codes [N, K], scales and zero points of the weight of a linear layer as a file stores them, and its bits."""
    weight = dict(slots(node))["weight"]
    encoding = job.partition.encoding(weight, node)
    assert encoding is not None
    bits = stored_bits(encoding.format.bits)
    # A file stores signed codes plus half of its range, which is their zero point.
    shift = 1 << (bits - 1) if encoding.format.signed else 0
    codes = encoding.codes(read_attr(job.partition.network, weight)).float() + shift
    held = [codes, encoding.qparams.scale.float(), encoding.qparams.zero_point.float() + shift]
    return ([tensor.T for tensor in held] if channel_axis(node) % 2 else held), bits


__all__ = ["register_product", "stored_weight"]
