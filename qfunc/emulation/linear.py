"""Emulate convolutions, linear layers and matmuls of codes."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor, fx

from qfunc.emulation.context import UnitContext, exponents, operand_codes
from qfunc.graph.constants import read_attr
from qfunc.numerics.kernels import fixed_point, integer
from qfunc.numerics.kernels.accumulators import (
    EXACT_FLOAT32,
    conv_codes,
    conv_transpose_codes,
    exact_chunks,
    linear_codes,
    matmul_codes,
)
from qfunc.numerics.kernels.requantize import (
    add_fractional_bias,
    clamp_to_bounds,
    dequantize_acc,
    requantize_fixed,
    requantize_lanes,
    requantize_offset,
    requantize_shift,
    requantize_through_real,
)
from qfunc.ops.node import attribute, channel_axis, slots
from qfunc.placement.encoding import Encoding, takes_float_bias
from qfunc.specs import DerivedQParams, FixedPoint, FixedPointLanes, FloatMultiplier, FloatRequantize, Shift

Products = FloatMultiplier | FixedPoint | FixedPointLanes | Shift | FloatRequantize


def requantize(job: UnitContext, arithmetic: Products) -> fx.Node:
    """Return the node of a product unit: its accumulator, then its requantization."""
    acc, product, bias = _accumulator(job, arithmetic)
    path = job.unit.path
    if isinstance(arithmetic, FloatRequantize | FloatMultiplier) and job.output_encoding is None:
        terms = _real_terms(job, arithmetic, product, bias)
        return apply_bounds(job, job.emitter.call(dequantize_acc, acc, *terms, arithmetic.fma, name=f"{job.name}_value"))
    zero, low, high = job.range()
    scale = torch.tensor(job.output.scale, dtype=torch.float32)
    match arithmetic:
        case FloatMultiplier(rounding, place, fused):
            m = job.emitter.constant(product.float() / scale, f"{path}.multiplier")
            if bias is not None or fused:
                offset = torch.zeros(()) if bias is None else bias / scale
                constant = job.emitter.constant(offset, f"{path}.offset")
                return job.emitter.call(
                    requantize_offset, acc, m, constant, zero, low, high, rounding, place, fused, name=job.name, result=True
                )
            return job.emitter.call(integer.requantize, acc, m, zero, low, high, rounding, place, name=job.name, result=True)
        case FloatRequantize(rounding, fused, division):
            return job.emitter.call(
                requantize_through_real, acc, *_real_terms(job, arithmetic, product, bias), float(scale), zero, low, high,
                rounding, fused, division, *job.fused_sum(), name=job.name, result=True,
            )  # fmt: skip
        case FixedPointLanes(steps, rest, lanes):
            pair = _multiplier(job, product / scale.double(), 31)
            return job.emitter.call(
                requantize_lanes, acc, *pair, list(steps), list(rest), lanes, zero, low, high, name=job.name, result=True
            )
        case FixedPoint(steps, bits):
            pair = _multiplier(job, product / scale.double(), bits)
            return job.emitter.call(requantize_fixed, acc, *pair, list(steps), zero, low, high, name=job.name, result=True)
        case Shift(rounding):
            shift = job.emitter.constant(-exponents(product / scale.double(), path), f"{path}.shift")
            return job.emitter.call(requantize_shift, acc, shift, zero, low, high, rounding, name=job.name, result=True)


def _real_terms(
    job: UnitContext, arithmetic: FloatRequantize | FloatMultiplier, product: Tensor, bias: Tensor | None
) -> tuple[fx.Node, fx.Node]:
    # The multiplier and the bias, in real units.
    reciprocals = isinstance(arithmetic, FloatRequantize) and arithmetic.reciprocals
    m = _product_of_reciprocals(job, product) if reciprocals else product.float()
    offset = torch.zeros(()) if bias is None else bias
    return job.emitter.constant(m, f"{job.unit.path}.multiplier"), job.emitter.constant(offset, f"{job.unit.path}.offset")


def _product_of_reciprocals(job: UnitContext, product: Tensor) -> Tensor:
    # 1 / (1/s_x * 1/s_w), each step in float32.
    x, weight = (job.partition.coding(n, job.root) for s, n in slots(job.root) if s in ("input", "weight"))
    assert x is not None
    assert weight is not None
    s_x, s_w = x.qparams.scale.float(), weight.qparams.scale.float().reshape(product.shape)
    return 1 / ((1 / s_x) * (1 / s_w))


def apply_bounds(job: UnitContext, value: fx.Node) -> fx.Node:
    """Return the node of a unit whose output stays real: a value clamped by the activations that are fused with the root."""
    return job.emitter.call(clamp_to_bounds, value, job.bounds(), name=job.name, result=True)


def _multiplier(job: UnitContext, ratio: Tensor, bits: int) -> list[fx.Node]:
    pair = zip(fixed_point.fixed_multiplier(ratio, bits), ("multiplier", "shift"), strict=True)
    return [job.emitter.constant(t, f"{job.unit.path}.{n}") for t, n in pair]


def _accumulator(job: UnitContext, arithmetic: Any) -> tuple[fx.Node, Tensor, Tensor | None]:
    # (exact accumulator, the exact s_x*s_w in float64 shaped for it, float bias or None)
    if job.unit.kind == "mul":
        a, b = operand_codes(job)
        left, right = (
            job.emitter.call(operator.sub, v.node, v.coding.zero_point, name=f"{job.name}_{i}")
            for i, v in zip(("left", "right"), (a, b), strict=True)
        )
        acc = job.emitter.call(operator.mul, left, right, name=f"{job.name}_product")
        return acc, a.coding.qparams.scale.double() * b.coding.qparams.scale.double(), None
    tensors = dict(slots(job.root))
    if "weight" not in tensors:
        a, b = operand_codes(job)
        largest = math.prod(float(_largest_offset(v.coding)) for v in (a, b))
        acc = job.emitter.call(
            matmul_codes, a.node, a.coding.zero_point, b.node, b.coding.zero_point, largest, name=f"{job.name}_acc"
        )
        return acc, a.coding.qparams.scale.double() * b.coding.qparams.scale.double(), None
    return _weighted_sum(job, tensors, arithmetic)


def _weighted_sum(job: UnitContext, tensors: dict[str, fx.Node], arithmetic: Any) -> tuple[fx.Node, Tensor, Tensor | None]:
    x, network = job.codes(tensors["input"]), job.partition
    weight_coding = network.coding(tensors["weight"], job.root)
    assert weight_coding is not None
    codes = job.constant_codes(tensors["weight"], weight_coding)
    weight = (codes - weight_coding.qparams.zero_point.to(codes.dtype)).float()
    matmul = job.unit.kind == "matmul"
    weight = weight.T if weight.ndim == 2 and channel_axis(job.root) else weight  # outputs first
    if weight.ndim != 2 and matmul:
        weight_node = job.emitter.constant(weight.contiguous(), str(tensors["weight"].target))
        largest = float(_largest_offset(x.coding) * weight.abs().max())
        acc = job.emitter.call(matmul_codes, x.node, x.coding.zero_point, weight_node, 0, largest, name=f"{job.name}_acc")
        return acc, x.coding.qparams.scale.double() * weight_coding.qparams.scale.double(), None
    largest, groups = _largest_offset(x.coding), attribute(job.root, "groups") if job.unit.kind == "conv" else 1
    ends = exact_chunks(weight, largest)
    if groups > 1:
        whole = float(weight.abs().double().flatten(1).sum(1).max()) * largest
        ends = [weight.shape[1]] if whole < EXACT_FLOAT32 else []
    product = x.coding.qparams.scale.double() * weight_coding.qparams.scale.double().flatten()
    if weight_coding.qparams.scale.ndim == 0:
        product = product.reshape(())
    bias_node, real_bias, bias, fraction_bits = tensors.get("bias"), None, None, 0
    if bias_node is not None:
        coding = network.coding(bias_node, job.root)
        if coding is None:
            real_bias = read_attr(network.network, bias_node).detach().float()
        elif not isinstance(coding.quantizer.module.site.value, DerivedQParams) and takes_float_bias(arithmetic):
            real_bias = coding.quantizer.module(read_attr(network.network, bias_node).detach()).float()
        else:
            aligned, fraction_bits = _aligned_bias(job, bias_node, coding, product)
            bound = float(weight.abs().double().flatten(1).sum(1).max()) * largest + float(aligned.abs().max())
            small = bound < EXACT_FLOAT32
            bias = job.emitter.constant(aligned.float() if small else aligned, str(bias_node.target))
    weight_node = job.emitter.constant(weight.contiguous(), str(tensors["weight"].target))
    product, fused_bias = product * 2.0**-fraction_bits, None if fraction_bits else bias
    if job.unit.kind == "conv_transpose":
        arguments = [attribute(job.root, n) for n in ("stride", "padding", "output_padding", "groups", "dilation")]
        acc = job.emitter.call(
            conv_transpose_codes, x.node, x.coding.zero_point, weight_node, fused_bias, *arguments, name=f"{job.name}_acc"
        )
    elif job.unit.kind != "conv":
        acc = job.emitter.call(linear_codes, x.node, x.coding.zero_point, weight_node, fused_bias, ends, name=f"{job.name}_acc")
        if fraction_bits:
            acc = job.emitter.call(add_fractional_bias, acc, bias, fraction_bits, 0, name=f"{job.name}_sum")
        return acc, product, real_bias
    else:
        arguments = [attribute(job.root, n) for n in ("stride", "padding", "dilation")]
        acc = job.emitter.call(
            conv_codes, x.node, x.coding.zero_point, weight_node, fused_bias, *arguments, groups, ends, name=f"{job.name}_acc"
        )
    if fraction_bits:
        acc = job.emitter.call(add_fractional_bias, acc, bias, fraction_bits, weight.ndim - 2, name=f"{job.name}_sum")
    shape = (-1, *[1] * (weight.ndim - 2))
    broadcast = product.reshape(shape) if product.ndim else product
    return acc, broadcast, None if real_bias is None else real_bias.reshape(shape)


def _aligned_bias(job: UnitContext, node: fx.Node, coding: Encoding, product: Tensor) -> tuple[Tensor, int]:
    # (codes of the bias at the accumulator's scale s_x*s_w * 2^-n, n): n fractional bits, 0 if the bias needs none.
    codes = job.constant_codes(node, coding).double()
    if isinstance(coding.quantizer.module.site.value, DerivedQParams):
        return codes, 0
    shift = exponents(coding.qparams.scale.double().flatten() / product, job.unit.path)
    fraction_bits = max(0, -int(shift.min()))
    return codes * torch.exp2((shift + fraction_bits).double()), fraction_bits


def _largest_offset(coding: Encoding) -> int:
    return max(coding.format.qmax - coding.zero_point, coding.zero_point - coding.format.qmin)
