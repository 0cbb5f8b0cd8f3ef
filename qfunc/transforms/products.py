"""Convolutions and products: an exact accumulator, then one of the ways back to codes."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from qfunc.graph.coding import Coding, takes_float_bias
from qfunc.graph.fold import read_attr
from qfunc.graph.vocabulary import attribute, channel_axis, slots
from qfunc.numerics import fixed_point, integer
from qfunc.numerics.accumulators import (
    EXACT_FLOAT32,
    conv_codes,
    conv_transpose_codes,
    exact_chunks,
    linear_codes,
    matmul_codes,
)
from qfunc.numerics.rounding import round_by
from qfunc.specs import Derived, FixedPoint, FixedPointLanes, FloatMultiplier, Shift, ThroughReal
from qfunc.transforms.job import Job, exponents, two

Products = FloatMultiplier | FixedPoint | FixedPointLanes | Shift | ThroughReal


def requantized(job: Job, arithmetic: Products) -> fx.Node:
    """The node of a product unit: its accumulator, then the arithmetic that makes codes of it."""
    acc, product, bias = _accumulator(job, arithmetic)
    path = job.unit.path
    if isinstance(arithmetic, ThroughReal | FloatMultiplier) and job.made is None:
        terms = _real_terms(job, arithmetic, product, bias)
        return bounded(job, job.emitter.call(dequantize_acc, acc, *terms, arithmetic.fma, name=f"{job.name}_value"))
    zero, low, high = job.range()
    scale = torch.tensor(job.output.scale, dtype=torch.float32)
    match arithmetic:
        case FloatMultiplier(rounding, place, fused):
            m = job.emitter.constant(product.float() / scale, f"{path}.multiplier")
            if bias is not None or fused:
                offset = torch.zeros(()) if bias is None else bias / scale
                held = job.emitter.constant(offset, f"{path}.offset")
                return job.emitter.call(
                    requantize_offset, acc, m, held, zero, low, high, rounding, place, fused, name=job.name, result=True
                )
            return job.emitter.call(integer.requantize, acc, m, zero, low, high, rounding, place, name=job.name, result=True)
        case ThroughReal(rounding, fused, division):
            return job.emitter.call(
                through_real, acc, *_real_terms(job, arithmetic, product, bias), float(scale), zero, low, high, rounding, fused,
                division, *job.joined(), name=job.name, result=True,
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
            held = job.emitter.constant(-exponents(product / scale.double(), path), f"{path}.shift")
            return job.emitter.call(requantize_shift, acc, held, zero, low, high, rounding, name=job.name, result=True)


def _real_terms(
    job: Job, arithmetic: ThroughReal | FloatMultiplier, product: Tensor, bias: Tensor | None
) -> tuple[fx.Node, fx.Node]:
    # The multiplier and the bias, in real units.
    reciprocals = isinstance(arithmetic, ThroughReal) and arithmetic.reciprocals
    m = _by_reciprocals(job, product) if reciprocals else product.float()
    held = torch.zeros(()) if bias is None else bias
    return job.emitter.constant(m, f"{job.unit.path}.multiplier"), job.emitter.constant(held, f"{job.unit.path}.offset")


def _by_reciprocals(job: Job, product: Tensor) -> Tensor:
    # 1 / (1/s_x * 1/s_w), each step in float32.
    x, weight = (job.partition.coding(n, job.root) for s, n in slots(job.root) if s in ("input", "weight"))
    assert x is not None
    assert weight is not None
    s_x, s_w = x.qparams.scale.float(), weight.qparams.scale.float().reshape(product.shape)
    return 1 / ((1 / s_x) * (1 / s_w))


def dequantize_acc(acc: Tensor, m: Tensor, bias: Tensor, fused: bool) -> Tensor:
    """acc * m + bias in float32, with one rounding for both or two: see `specs.ThroughReal`."""
    return integer.fma(acc.float(), m, bias) if fused else acc.float() * m + bias


def bounded(job: Job, value: fx.Node) -> fx.Node:
    """The node of a unit whose output stays real: a value within the bounds of what is fused with the root."""
    return job.emitter.call(within_bounds, value, job.bounds(), name=job.name, result=True)


def within_bounds(value: Tensor, bounds: Sequence[tuple[float | None, float | None]]) -> Tensor:
    """A value that activations keep between bounds, one after the other."""
    for least, most in bounds:
        value = value.clamp(least, most)
    return value


def _multiplier(job: Job, ratio: Tensor, bits: int) -> list[fx.Node]:
    pair = zip(fixed_point.fixed_multiplier(ratio, bits), ("multiplier", "shift"), strict=True)
    return [job.emitter.constant(t, f"{job.unit.path}.{n}") for t, n in pair]


def requantize_offset(
    acc: Tensor, m: Tensor, offset: Tensor, zero_point: int, low: int, high: int, rounding: str, place: str, fused: bool
) -> Tensor:
    """clamp(R(acc*M + bias/s_y) + z): a float bias, fused with the product or not."""
    offset = offset + zero_point if place == "before" else offset
    value = integer.fma(acc.float(), m, offset) if fused else acc.float() * m + offset
    return (round_by(value, rounding, low) + (0 if place == "before" else zero_point)).clamp(low, high)


def through_real(
    acc: Tensor,
    m: Tensor,
    bias: Tensor,
    scale: float,
    zero_point: int,
    low: int,
    high: int,
    rounding: str,
    fused: bool,
    division: bool,
    bounds: Sequence[tuple[float | None, float | None]] = (),
    other: Tensor | None = None,
) -> Tensor:
    """quantize(clamp(acc * s_x*s_w + bias) + other): see `specs.ThroughReal`."""
    value = within_bounds(dequantize_acc(acc, m, bias, fused), bounds)
    value = value if other is None else value + other
    return integer.quantize_codes(value, scale, zero_point, low, high, rounding, division)


def requantize_fixed(acc: Tensor, m: Tensor, e: Tensor, steps: list[str], zero_point: int, low: int, high: int) -> Tensor:
    """clamp(steps(acc * m * 2^-e) + z): see `specs.FixedPoint`."""
    return (fixed_point.scale_fixed(acc, m, e, steps) + zero_point).clamp(low, high).float()


def requantize_lanes(
    acc: Tensor, m: Tensor, e: Tensor, steps: list[str], rest: list[str], lanes: int, zero_point: int, low: int, high: int
) -> Tensor:
    """As `requantize_fixed`, the channels that fill no whole lanes by the steps `rest`: see `specs.FixedPointLanes`."""
    whole = acc.shape[1] // lanes * lanes
    parts = []
    for part, how in ((slice(whole), steps), (slice(whole, None), rest)):
        pair = (m, e) if m.ndim == 0 else (m[part], e[part])
        parts.append(requantize_fixed(acc[:, part], *pair, how, zero_point, low, high))
    return torch.cat(parts, 1)


def requantize_shift(acc: Tensor, shift: Tensor, zero_point: int, low: int, high: int, rounding: str) -> Tensor:
    """clamp(R(acc * 2^-k) + z): see `specs.Shift`; a negative k shifts left."""
    left = acc.long() << (-shift).clamp(min=0)
    return (fixed_point.shift_right(left, shift.clamp(min=0), rounding) + zero_point).clamp(low, high).float()


def _accumulator(job: Job, arithmetic: Any) -> tuple[fx.Node, Tensor, Tensor | None]:
    # (exact accumulator, the exact s_x*s_w in float64 shaped for it, float bias or None)
    if job.unit.kind == "mul":
        a, b = two(job)
        left, right = (
            job.emitter.call(operator.sub, v.node, v.coding.zero_point, name=f"{job.name}_{i}")
            for i, v in zip(("left", "right"), (a, b), strict=True)
        )
        acc = job.emitter.call(operator.mul, left, right, name=f"{job.name}_product")
        return acc, a.coding.qparams.scale.double() * b.coding.qparams.scale.double(), None
    tensors = dict(slots(job.root))
    if "weight" not in tensors:
        a, b = two(job)
        largest = math.prod(float(_largest(v.coding)) for v in (a, b))
        acc = job.emitter.call(
            matmul_codes, a.node, a.coding.zero_point, b.node, b.coding.zero_point, largest, name=f"{job.name}_acc"
        )
        return acc, a.coding.qparams.scale.double() * b.coding.qparams.scale.double(), None
    return _weighted(job, tensors, arithmetic)


def _weighted(job: Job, tensors: dict[str, fx.Node], arithmetic: Any) -> tuple[fx.Node, Tensor, Tensor | None]:
    x, network = job.given(tensors["input"]), job.partition
    weight_coding = network.coding(tensors["weight"], job.root)
    assert weight_coding is not None
    codes = job.constant_codes(tensors["weight"], weight_coding)
    weight = (codes - weight_coding.qparams.zero_point.to(codes.dtype)).float()  # its own zero point, where it has one
    matmul = job.unit.kind == "matmul"
    weight = weight.T if weight.ndim == 2 and channel_axis(job.root) else weight  # outputs first
    if weight.ndim != 2 and matmul:
        held = job.emitter.constant(weight.contiguous(), str(tensors["weight"].target))
        largest = float(_largest(x.coding) * weight.abs().max())
        acc = job.emitter.call(matmul_codes, x.node, x.coding.zero_point, held, 0, largest, name=f"{job.name}_acc")
        return acc, x.coding.qparams.scale.double() * weight_coding.qparams.scale.double(), None
    largest, groups = _largest(x.coding), attribute(job.root, "groups") if job.unit.kind == "conv" else 1
    ends = exact_chunks(weight, largest)
    if groups > 1:
        whole = float(weight.abs().double().flatten(1).sum(1).max()) * largest
        ends = [weight.shape[1]] if whole < EXACT_FLOAT32 else []
    product = x.coding.qparams.scale.double() * weight_coding.qparams.scale.double().flatten()
    if weight_coding.qparams.scale.ndim == 0:
        product = product.reshape(())
    bias_node, real_bias, bias, behind = tensors.get("bias"), None, None, 0
    if bias_node is not None:
        coding = network.coding(bias_node, job.root)
        if coding is None:
            real_bias = read_attr(network.network, bias_node).detach().float()
        elif not isinstance(coding.seat.module.site.value, Derived) and takes_float_bias(arithmetic):
            real_bias = coding.seat.module(read_attr(network.network, bias_node).detach()).float()
        else:
            own, behind = _aligned(job, bias_node, coding, product)
            bound = float(weight.abs().double().flatten(1).sum(1).max()) * largest + float(own.abs().max())
            small = bound < EXACT_FLOAT32
            bias = job.emitter.constant(own.float() if small else own, str(bias_node.target))
    held = job.emitter.constant(weight.contiguous(), str(tensors["weight"].target))
    product, within = product * 2.0**-behind, None if behind else bias
    if job.unit.kind == "conv_transpose":
        arguments = [attribute(job.root, n) for n in ("stride", "padding", "output_padding", "groups", "dilation")]
        acc = job.emitter.call(
            conv_transpose_codes, x.node, x.coding.zero_point, held, within, *arguments, name=f"{job.name}_acc"
        )
    elif job.unit.kind != "conv":
        acc = job.emitter.call(linear_codes, x.node, x.coding.zero_point, held, within, ends, name=f"{job.name}_acc")
        if behind:
            acc = job.emitter.call(with_bits_behind, acc, bias, behind, 0, name=f"{job.name}_sum")
        return acc, product, real_bias
    else:
        arguments = [attribute(job.root, n) for n in ("stride", "padding", "dilation")]
        acc = job.emitter.call(
            conv_codes, x.node, x.coding.zero_point, held, within, *arguments, groups, ends, name=f"{job.name}_acc"
        )
    if behind:
        acc = job.emitter.call(with_bits_behind, acc, bias, behind, weight.ndim - 2, name=f"{job.name}_sum")
    shape = (-1, *[1] * (weight.ndim - 2))
    along = product.reshape(shape) if product.ndim else product
    return acc, along, None if real_bias is None else real_bias.reshape(shape)


def _aligned(job: Job, node: fx.Node, coding: Coding, product: Tensor) -> tuple[Tensor, int]:
    # (codes of the bias at the accumulator's scale s_x*s_w * 2^-n, n): n bits behind the point, 0 where it needs none.
    codes = job.constant_codes(node, coding).double()
    if isinstance(coding.seat.module.site.value, Derived):
        return codes, 0
    shift = exponents(coding.qparams.scale.double().flatten() / product, job.unit.path)
    behind = max(0, -int(shift.min()))
    return codes * torch.exp2((shift + behind).double()), behind


def with_bits_behind(acc: Tensor, bias: Tensor, bits: int, spatial: int) -> Tensor:
    """acc * 2^bits + bias, exact in float64: an accumulator with bits behind the point, for biases that need them."""
    return acc.double() * 2.0**bits + bias.double().reshape(-1, *[1] * spatial)


def _largest(coding: Coding) -> int:
    return max(coding.format.qmax - coding.zero_point, coding.zero_point - coding.format.qmin)
