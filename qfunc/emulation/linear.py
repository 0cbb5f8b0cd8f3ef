"""Emulate convolutions, linear layers and matmuls of codes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx

from qfunc.emulation.addition import shares_layout_with_convolution
from qfunc.emulation.builder import Codes
from qfunc.emulation.context import UnitContext, operand_codes
from qfunc.emulation.products.overflow import apply_overflow
from qfunc.emulation.products.stages import requantize_in_stages
from qfunc.numerics.kernels import fixed_point, integer
from qfunc.numerics.kernels.accumulators import (
    EXACT_FLOAT32,
    conv_codes,
    conv_transpose_codes,
    exact_chunks,
    linear_codes,
    matmul_codes,
    product_codes,
)
from qfunc.numerics.kernels.requantize import (
    SMALLEST_BIAS,
    add_by_range,
    add_fractional_bias,
    clamp_to_bounds,
    dequantize_acc,
    range_step,
    requantize_by_range,
    requantize_fixed,
    requantize_gemv,
    requantize_lanes,
    requantize_offset,
    requantize_shift,
    requantize_through_real,
    weight_codes,
)
from qfunc.numerics.kernels.vector import product_lanes
from qfunc.ops.node import attribute, slots
from qfunc.placement.products import Products, exponents, largest_offset, products_of
from qfunc.specs import (
    FixedPoint,
    FixedPointGemv,
    FixedPointLanes,
    FloatMultiplier,
    FloatRequantize,
    ProductLanes,
    Shift,
    Stages,
)

ProductArithmetic = (
    FloatMultiplier | FixedPoint | FixedPointLanes | FixedPointGemv | Shift | FloatRequantize | Stages | ProductLanes
)  # fmt: skip


def requantize(job: UnitContext, arithmetic: ProductArithmetic) -> fx.Node:
    """Return the node of a product unit: its accumulator, then its requantization."""
    acc, product, bias = _accumulator(job, arithmetic)
    path = job.unit.path
    if isinstance(arithmetic, FloatRequantize | FloatMultiplier) and job.output_encoding is None:
        terms, divides = _real_terms(job, arithmetic, product, bias), _divides(arithmetic)
        return apply_bounds(
            job, job.emitter.call(dequantize_acc, acc, *terms, arithmetic.fma, divides, name=f"{job.name}_value")
        )
    if isinstance(arithmetic, Stages):
        return requantize_in_stages(job, arithmetic, acc, product, bias)
    zero, low, high = job.range()
    scale = torch.tensor(job.output.scale, dtype=torch.float32)
    match arithmetic:
        case FloatMultiplier(rounding, place, fused, dtype=name):
            dtype = getattr(torch, name)
            m = job.emitter.constant(product.to(dtype) / scale.to(dtype), f"{path}.multiplier")
            if bias is not None or fused:
                offset = torch.zeros((), dtype=dtype) if bias is None else bias.to(dtype) / scale.to(dtype)
                constant = job.emitter.constant(offset, f"{path}.offset")
                return job.emitter.call(
                    requantize_offset, acc, m, constant, zero, low, high, rounding, place, fused, name=job.name, result=True
                )
            return job.emitter.call(integer.requantize, acc, m, zero, low, high, rounding, place, name=job.name, result=True)
        case FloatRequantize(by_range=True):
            return _write_by_range(job, acc, product, bias)
        case FloatRequantize(rounding, fused, merged=True) if job.bounds() == [(0.0, None)]:
            terms = _merged_terms(job, arithmetic, product, bias, 1 / scale)
            return job.emitter.call(
                requantize_offset, acc, *terms, zero, max(low, zero), high, rounding, "after", fused, name=job.name, result=True
            )
        case FloatRequantize(rounding, fused, division):
            return job.emitter.call(
                requantize_through_real, acc, *_real_terms(job, arithmetic, product, bias), float(scale), zero, low, high,
                rounding, fused, division, *job.fused_sum(), _divides(arithmetic), name=job.name, result=True,
            )  # fmt: skip
        case FixedPointLanes(steps, rest, lanes):
            pair = _multiplier(job, product / scale.double(), 31)
            return job.emitter.call(
                requantize_lanes, acc, *pair, list(steps), list(rest), lanes, zero, low, high, name=job.name, result=True
            )
        case FixedPointGemv(steps, vector, float_product=rounded):
            pair = _multiplier(job, _ratio(product, scale, rounded), 31)
            weight = products_of(job.partition, job.unit, arithmetic)
            large = weight is not None and _is_large(weight.weight, arithmetic)
            return job.emitter.call(
                requantize_gemv, acc, *pair, list(steps), list(vector if large else steps),
                1 if weight is None else len(weight.weight), zero, low, high, name=job.name, result=True,
            )  # fmt: skip
        case FixedPoint(steps, bits, reduced=reduced, float_ratio=in_float, float_product=rounded):
            ratio = (product.float() / scale).double() if in_float else _ratio(product, scale, rounded)
            pair = _multiplier(job, ratio, bits, reduced)
            return job.emitter.call(requantize_fixed, acc, *pair, list(steps), zero, low, high, name=job.name, result=True)
        case ProductLanes(bits, lanes):
            pair, (a, b) = _multiplier(job, (product.float() / scale).double(), 31), operand_codes(job)
            return job.emitter.call(
                product_lanes, acc, a.node, b.node, *pair, bits, lanes, zero, low, high, shares_layout_with_convolution(job),
                name=job.name, result=True,
            )  # fmt: skip
        case Shift(rounding):
            shift = job.emitter.constant(-exponents(product / scale.double(), path), f"{path}.shift")
            return job.emitter.call(requantize_shift, acc, shift, zero, low, high, rounding, name=job.name, result=True)


def _ratio(product: Tensor, scale: Tensor, rounded: bool) -> Tensor:
    # s_x s_w / s_y in float64; one product of scales may be rounded to float32 first.
    return (product.float().double() if rounded and product.numel() == 1 else product) / scale.double()


def _is_large(weight: Tensor, arithmetic: FixedPointGemv) -> bool:
    return len(weight) >= arithmetic.rows and weight[0].numel() >= arithmetic.columns


def _real_terms(
    job: UnitContext, arithmetic: FloatRequantize | FloatMultiplier, product: Tensor, bias: Tensor | None
) -> tuple[fx.Node, fx.Node]:
    # The multiplier, or the divisor, and the bias, in real units.
    m, offset = _terms(job, arithmetic, product, bias)
    return job.emitter.constant(m, f"{job.unit.path}.multiplier"), job.emitter.constant(offset, f"{job.unit.path}.offset")


def _merged_terms(
    job: UnitContext, arithmetic: FloatRequantize, product: Tensor, bias: Tensor | None, steps: Tensor
) -> tuple[fx.Node, fx.Node]:
    # Both in steps of the output.
    m, offset = (t * steps for t in _terms(job, arithmetic, product, bias))
    return job.emitter.constant(m, f"{job.unit.path}.multiplier"), job.emitter.constant(offset, f"{job.unit.path}.offset")


def _terms(
    job: UnitContext, arithmetic: FloatRequantize | FloatMultiplier, product: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    offset = torch.zeros(()) if bias is None else bias
    match arithmetic:
        case FloatRequantize(by_range=True):
            return _range_product(job, product), _range_bias(bias)
        case FloatRequantize(reciprocals=True):
            m = _product_of_reciprocals(job, product)
            return m if _divides(arithmetic) else 1 / m, offset
        case FloatMultiplier(dtype="float64"):
            return product, offset.double()
        case _:
            return product.float(), offset


def _write_by_range(job: UnitContext, acc: fx.Node, product: Tensor, bias: Tensor | None) -> fx.Node:
    zero, low, high = job.range()
    output = (job.output.scale, zero, (job.output.format.qmin, job.output.format.qmax), (low, high))
    m = job.emitter.constant(_range_product(job, product), f"{job.unit.path}.multiplier")
    bounds, edge = job.addend()
    how = _read_by_convolutions(job, job.unit.group.output), any(most is not None for _, most in job.bounds())
    offset = job.emitter.constant(_range_bias(bias), f"{job.unit.path}.offset")
    if edge is not None and isinstance(added := job.inputs[edge[0].name], Codes):
        encoding = added.encoding
        qparams = encoding.scale, encoding.zero_point, encoding.format.qmin, encoding.format.qmax
        other = (added.node, *qparams, _read_by_convolutions(job, edge[0]))
        return job.emitter.call(add_by_range, acc, m, offset, bounds, other, *output, *how, name=job.name, result=True)
    real = None if edge is None else job.real(*edge)
    return job.emitter.call(requantize_by_range, acc, m, offset, *output, *how, bounds, real, name=job.name, result=True)


def _read_by_convolutions(job: UnitContext, node: fx.Node) -> bool:
    # OpenVINO's convolutions read unsigned bytes, so that signed codes are stored as q - qmin.
    readers = [job.partition.units_by_root.get(reader) for reader in node.users]
    return any(u is not None and u.kind == "conv" and u.integer for u in readers)


def _range_product(job: UnitContext, product: Tensor) -> Tensor:
    # s_x s_w in float32, each scale the step of its range, in the shape of `product`.
    encodings = {s: job.partition.encoding(n, job.root) for s, n in slots(job.root) if s in ("input", "weight")}
    x, weight = encodings["input"], encodings["weight"]
    assert x is not None
    assert weight is not None
    step = range_step(x.scale, x.zero_point, x.format.qmin, x.format.qmax)
    codes = weight_codes(weight.format.qmin, weight.format.qmax)
    return step * range_step(weight.qparams.scale, weight.qparams.zero_point.long(), *codes).reshape(product.shape)


def _range_bias(bias: Tensor | None) -> Tensor:
    # The bias that the file has.
    return bias if bias is not None and bool(bias.any()) else torch.tensor(SMALLEST_BIAS)


def _product_of_reciprocals(job: UnitContext, product: Tensor) -> Tensor:
    # 1/s_x * 1/s_w, each step in float32.
    x, weight = (job.partition.encoding(n, job.root) for s, n in slots(job.root) if s in ("input", "weight"))
    assert x is not None
    assert weight is not None
    s_x, s_w = x.qparams.scale.float(), weight.qparams.scale.float().reshape(product.shape)
    return (1 / s_x) * (1 / s_w)


def _divides(arithmetic: FloatRequantize | FloatMultiplier) -> bool:
    return isinstance(arithmetic, FloatRequantize) and arithmetic.quotient


def apply_bounds(job: UnitContext, value: fx.Node) -> fx.Node:
    """Return the node of a unit whose output stays real: a value clamped by the activations that are fused with the root."""
    return job.emitter.call(clamp_to_bounds, value, job.bounds(), name=job.name, result=True)


def _multiplier(job: UnitContext, ratio: Tensor, bits: int, reduced: int | None = None) -> list[fx.Node]:
    pair = fixed_point.fixed_multiplier(ratio, bits)
    if reduced is not None:
        pair = fixed_point.reduced_multiplier(*pair, bits, reduced)
    named = zip(pair, ("multiplier", "shift"), strict=True)
    return [job.emitter.constant(t, f"{job.unit.path}.{n}") for t, n in named]


def _accumulator(job: UnitContext, arithmetic: Any) -> tuple[fx.Node, Tensor, Tensor | None]:
    # (accumulator, the exact s_x*s_w in float64 shaped for it, float bias or None)
    products = None if job.unit.kind == "mul" else products_of(job.partition, job.unit, arithmetic)
    if products is None:
        a, b = operand_codes(job)
        largest = math.prod(float(largest_offset(v.encoding)) for v in (a, b))
        function, name = (product_codes, "product") if job.unit.kind == "mul" else (matmul_codes, "acc")
        operands = (a.node, a.encoding.zero_point, b.node, b.encoding.zero_point)
        acc = job.emitter.call(function, *operands, largest, name=f"{job.name}_{name}")
        return apply_overflow(job, acc), a.encoding.qparams.scale.double() * b.encoding.qparams.scale.double(), None
    return _weighted_sum(job, products)


def _weighted_sum(job: UnitContext, products: Products) -> tuple[fx.Node, Tensor, Tensor | None]:
    x, tensors = job.codes(dict(slots(job.root))["input"]), dict(slots(job.root))
    weight, zero, name, largest = products.weight, x.encoding.zero_point, f"{job.name}_acc", products.largest_offset()
    weight_node = job.emitter.constant(weight.contiguous(), str(tensors["weight"].target))
    if weight.ndim != 2 and job.unit.kind == "matmul":
        acc = job.emitter.call(
            matmul_codes, x.node, zero, weight_node, 0, float(largest * weight.abs().max()), name=name
        )  # fmt: skip
        return apply_overflow(job, acc, products), products.scale, None
    groups = attribute(job.root, "groups") if job.unit.kind == "conv" else 1
    whole = float(weight.abs().double().flatten(1).sum(1).max()) * largest
    ends = exact_chunks(weight, largest)
    if groups > 1:
        ends = [weight.shape[1]] if whole < EXACT_FLOAT32 else []
    bias, fraction_bits = None, products.fraction_bits
    if products.bias is not None:
        small = whole + float(products.bias.abs().max()) < EXACT_FLOAT32
        bias = job.emitter.constant(products.bias.float() if small else products.bias, str(tensors["bias"].target))
    scale, fused_bias = products.scale * 2.0**-fraction_bits, None if fraction_bits else bias
    spatial = 0
    if job.unit.kind == "conv_transpose":
        arguments = [attribute(job.root, n) for n in ("stride", "padding", "output_padding", "groups", "dilation")]
        acc = job.emitter.call(conv_transpose_codes, x.node, zero, weight_node, fused_bias, *arguments, name=name)
        spatial = weight.ndim - 2
    elif job.unit.kind != "conv":
        acc = job.emitter.call(linear_codes, x.node, zero, weight_node, fused_bias, ends, name=name)
    else:
        arguments = [attribute(job.root, n) for n in ("stride", "padding", "dilation")]
        acc = job.emitter.call(conv_codes, x.node, zero, weight_node, fused_bias, *arguments, groups, ends, name=name)
        spatial = weight.ndim - 2
    if fraction_bits:
        acc = job.emitter.call(add_fractional_bias, acc, bias, fraction_bits, spatial, name=f"{job.name}_sum")
    acc, shape, real_bias = apply_overflow(job, acc, products), (-1, *[1] * spatial), products.real_bias
    if not spatial:
        return acc, scale, real_bias
    broadcast = scale.reshape(shape) if scale.ndim else scale
    return acc, broadcast, None if real_bias is None else real_bias.reshape(shape)
