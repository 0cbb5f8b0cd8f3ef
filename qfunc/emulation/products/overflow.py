"""Emulate accumulators that are too narrow for some of a unit's sums."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from qfunc.emulation.context import UnitContext, operand_codes
from qfunc.errors import EmulationError
from qfunc.numerics.sums.overflow import (
    EXACT_FLOAT64,
    saturate,
    saturate_conv,
    saturate_conv_transpose,
    saturate_linear,
    saturate_matmul,
    saturate_products,
    wrap,
    wrap_products,
)
from qfunc.numerics.sums.saturating_pairs import outputs_at_risk, saturate_pairs_conv, saturate_pairs_linear
from qfunc.ops.node import attribute
from qfunc.placement.products import Products, SumRange, range_of_unit
from qfunc.specs import FixedPoint, SaturatesEachStep, SaturatesPairs, Wraps


def apply_overflow(job: UnitContext, acc: fx.Node, products: Products | None = None) -> fx.Node:
    """Return the node of the sums as the accumulator stores them, or the exact sums if none can overflow.

    Raises:
        EmulationError: sums that may overflow, and that float64 does not hold.
    """
    sums = range_of_unit(job.partition, job.unit, products)
    if sums is None:
        return acc
    if isinstance(sums.accumulator.overflow, SaturatesPairs) and products is not None:
        acc = _saturate_pairs(job, acc, products)
    if sums.largest >= EXACT_FLOAT64 and not sums.per_product:
        do = "Use fewer bits for the input, the weight or the bias."
        raise EmulationError(
            where=f"unit {job.unit.path!r}", found=f"sums up to {sums.largest:.4g}", wanted="sums below 2^53", do=do
        )
    _require_products(job, sums)
    if not bool(sums.at_risk.any()):
        return acc
    overflow, name = sums.accumulator.overflow, f"{job.name}_stored"
    if isinstance(overflow, SaturatesEachStep) and job.unit.kind != "mul":
        return _saturate_each_step(job, acc, products, sums, overflow, name)
    if sums.per_product:
        function = wrap_products if isinstance(overflow, Wraps | SaturatesPairs) else saturate_products
        return job.emitter.call(function, acc, operand_codes(job)[0].node, sums.largest, sums.bits, name=name)
    return job.emitter.call(wrap if isinstance(overflow, Wraps | SaturatesPairs) else saturate, acc, sums.bits, name=name)


def _require_products(job: UnitContext, sums: SumRange) -> None:
    # A sum times its multiplier, before the shift, is an integer of 64 bits.
    arithmetic = job.unit.kernel.arithmetic if job.unit.kernel is not None else None
    if not isinstance(arithmetic, FixedPoint) or len(arithmetic.steps) > 1:
        return
    bits = arithmetic.reduced or arithmetic.bits
    if min(sums.largest, 2.0 ** (sums.bits - 1)) * 2.0**bits >= 2.0**63:
        found, do = (
            f"sums up to {sums.largest:.4g} and a multiplier of {bits} bits",
            "Use fewer bits for the bias or the input.",
        )
        raise EmulationError(where=f"unit {job.unit.path!r}", found=found, wanted="products below 2^63", do=do)


def _saturate_pairs(job: UnitContext, acc: fx.Node, products: Products) -> fx.Node:
    tensors, path, weight = dict(job.partition.slots(job.root)), job.unit.path, products.weight
    x, encoding = job.codes(tensors["input"]), job.partition.encoding(tensors["weight"], job.root)
    if encoding is None or not encoding.format.signed or (weight.ndim != 2 and job.unit.kind != "conv"):
        return acc
    if job.unit.kind == "conv" and weight.shape[1] == 1 and attribute(job.root, "groups") == weight.shape[0]:
        return acc
    ordered = weight.movedim(1, -1).flatten(1) if job.unit.kind == "conv" else weight
    risk = outputs_at_risk(ordered, x.encoding.format.qmin, x.encoding.format.qmax)
    if not bool(risk.any()):
        return acc
    terms = job.emitter.constant(weight.contiguous(), f"{path}.terms")
    channels, name = job.emitter.constant(_indices(risk), f"{path}.channels"), f"{job.name}_pairs"
    if job.unit.kind != "conv":
        return job.emitter.call(saturate_pairs_linear, acc, x.node, terms, channels, name=name)
    arguments = [attribute(job.root, n) for n in ("stride", "padding", "dilation")]
    return job.emitter.call(saturate_pairs_conv, acc, x.node, x.encoding.zero_point, terms, *arguments, channels, name=name)


def _saturate_each_step(
    job: UnitContext, acc: fx.Node, products: Products | None, sums: SumRange, overflow: SaturatesEachStep, name: str
) -> fx.Node:
    if products is None:
        a, b = operand_codes(job)
        return job.emitter.call(
            saturate_matmul, acc, a.node, a.encoding.zero_point, b.node, b.encoding.zero_point, sums.largest, sums.bits,
            overflow.products, name=name,
        )  # fmt: skip
    x = next(job.codes(n) for s, n in job.partition.slots(job.root) if s == "input")
    path = job.unit.path
    weight = job.emitter.constant((products.weight * 2.0**products.fraction_bits).contiguous(), f"{path}.terms")
    if job.unit.kind == "matmul" and products.weight.ndim != 2:
        largest = float(products.largest_offset() * products.weight.abs().max())
        return job.emitter.call(
            saturate_matmul, acc, x.node, x.encoding.zero_point, weight, 0, largest, sums.bits, overflow.products, name=name
        )
    bias = None if products.bias is None else job.emitter.constant(products.bias, f"{path}.start")
    steps: list[Any] = [
        job.emitter.constant(_indices(sums.at_risk), f"{path}.channels"), sums.bits, list(overflow.order),
        overflow.bias == "last", overflow.products,
    ]  # fmt: skip
    if job.unit.kind == "conv":
        arguments = [attribute(job.root, n) for n in ("stride", "padding", "dilation")]
        return job.emitter.call(saturate_conv, acc, x.node, x.encoding.zero_point, weight, bias, *arguments, *steps, name=name)
    if job.unit.kind == "conv_transpose":
        arguments = [attribute(job.root, n) for n in ("stride", "padding", "output_padding", "groups", "dilation")]
        return job.emitter.call(
            saturate_conv_transpose, acc, x.node, x.encoding.zero_point, weight, bias, *arguments, *steps, name=name
        )
    return job.emitter.call(saturate_linear, acc, x.node, x.encoding.zero_point, weight, bias, *steps, name=name)


def _indices(chosen: Tensor) -> Tensor:
    return torch.nonzero(chosen).flatten()


__all__ = ["apply_overflow"]
