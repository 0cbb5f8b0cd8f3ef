"""Accumulators that are too narrow for some of a unit's sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qfunc.arithmetic.computation import Computation, Constant
from qfunc.arithmetic.integers import Integers, SumRange, sum_range
from qfunc.arithmetic.unit import UnitSpec
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
from qfunc.specs import Accumulator, SaturatesEachStep, SaturatesPairs, Wraps


def stored_sums(
    unit: UnitSpec, acc: Computation, accumulator: int | Accumulator, integers: Integers | None, multiplier_bits: int | None
) -> Computation:
    """Return the sums as the accumulator stores them, or the exact sums if none can overflow.

    Args:
        unit: The unit.
        acc: Its exact sums.
        accumulator: The accumulator, or its number of bits.
        integers: The integers of the unit; None for products of two activations.
        multiplier_bits: The bits of a multiplier, if a sum times it is stored in 64 bits.
    Raises:
        EmulationError: sums that may overflow, and that float64 does not hold; products beyond 64 bits.
    """
    sums = sum_range(unit, accumulator, integers)
    if sums is None:
        return acc
    if isinstance(sums.accumulator.overflow, SaturatesPairs) and integers is not None:
        acc = _saturate_pairs(unit, acc, integers)
    if sums.largest >= EXACT_FLOAT64 and not sums.per_product:
        do = "Use fewer bits for the input, the weight or the bias."
        raise unit.error(f"sums up to {sums.largest:.4g}", "sums below 2^53", do)
    if multiplier_bits is not None:
        _require_products(unit, sums, multiplier_bits)
    if not bool(sums.at_risk.any()):
        return acc
    overflow = sums.accumulator.overflow
    if isinstance(overflow, SaturatesEachStep) and unit.kind != "mul":
        return _saturate_each_step(unit, acc, integers, sums, overflow)
    wraps = isinstance(overflow, Wraps | SaturatesPairs)
    if sums.per_product:
        function = wrap_products if wraps else saturate_products
        return Computation(function, (acc, unit.inputs[0], sums.largest, sums.bits), "stored")
    return Computation(wrap if wraps else saturate, (acc, sums.bits), "stored")


def _require_products(unit: UnitSpec, sums: SumRange, bits: int) -> None:
    # A sum times its multiplier, before the shift, is an integer of 64 bits.
    if min(sums.largest, 2.0 ** (sums.bits - 1)) * 2.0**bits >= 2.0**63:
        found, do = (
            f"sums up to {sums.largest:.4g} and a multiplier of {bits} bits",
            "Use fewer bits for the bias or the input.",
        )
        raise unit.error(found, "products below 2^63", do)


def _saturate_pairs(unit: UnitSpec, acc: Computation, integers: Integers) -> Computation:
    x, w, weight = integers.input, unit.operand("weight"), integers.weight
    assert x.coding is not None
    if w is None or w.coding is None or not w.coding.format.signed or (weight.ndim != 2 and unit.kind != "conv"):
        return acc
    if unit.kind == "conv" and weight.shape[1] == 1 and unit.arguments["groups"] == weight.shape[0]:
        return acc
    ordered = weight.movedim(1, -1).flatten(1) if unit.kind == "conv" else weight
    risk = outputs_at_risk(ordered, x.coding.format.qmin, x.coding.format.qmax)
    if not bool(risk.any()):
        return acc
    terms, channels = Constant(weight.contiguous(), "terms"), Constant(_indices(risk), "channels")
    if unit.kind != "conv":
        return Computation(saturate_pairs_linear, (acc, x, terms, channels), "pairs")
    arguments = [unit.arguments[n] for n in ("stride", "padding", "dilation")]
    return Computation(saturate_pairs_conv, (acc, x, x.coding.zero_point, terms, *arguments, channels), "pairs")


def _saturate_each_step(
    unit: UnitSpec, acc: Computation, integers: Integers | None, sums: SumRange, overflow: SaturatesEachStep
) -> Computation:
    if integers is None:
        a, b = (o for o in unit.operands if o.slot and o.at == 0)
        assert a.coding is not None
        assert b.coding is not None
        limits = (sums.largest, sums.bits, overflow.products)
        return Computation(saturate_matmul, (acc, a, a.coding.zero_point, b, b.coding.zero_point, *limits), "stored")
    x, coding = integers.input, integers.input.coding
    assert coding is not None
    weight = Constant((integers.weight * 2.0**integers.fraction_bits).contiguous(), "terms")
    if unit.kind == "matmul" and integers.weight.ndim != 2:
        largest = float(integers.largest_offset() * integers.weight.abs().max())
        limits = (largest, sums.bits, overflow.products)
        return Computation(saturate_matmul, (acc, x, coding.zero_point, weight, 0, *limits), "stored")
    bias = None if integers.bias is None else Constant(integers.bias, "start")
    steps: list[Any] = [
        Constant(_indices(sums.at_risk), "channels"), sums.bits, list(overflow.order), overflow.bias == "last",
        overflow.products,
    ]  # fmt: skip
    function: Callable[..., Any] = saturate_linear
    names: tuple[str, ...] = ()
    if unit.kind == "conv":
        function, names = saturate_conv, ("stride", "padding", "dilation")
    elif unit.kind == "conv_transpose":
        function, names = saturate_conv_transpose, ("stride", "padding", "output_padding", "groups", "dilation")
    arguments = [unit.arguments[n] for n in names]
    return Computation(function, (acc, x, coding.zero_point, weight, bias, *arguments, *steps), "stored")


def _indices(chosen: Tensor) -> Tensor:
    return torch.nonzero(chosen).flatten()
