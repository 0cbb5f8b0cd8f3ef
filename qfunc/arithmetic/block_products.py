"""Products with weights in blocks of which a function of its own computes all steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from qfunc.arithmetic.block_weights import stored_unsigned
from qfunc.arithmetic.computation import Computation, Constant, Real, bounded
from qfunc.arithmetic.unit import Operand, UnitSpec
from qfunc.numerics.sums.blocks import block_product
from qfunc.numerics.sums.chunks import chunked_product


def register_product(unit: UnitSpec, x: Real, weight: Operand, bias: Real | None, block: int) -> Computation:
    """Return the real values of a product with `RegisterLanes`."""
    held, bits = stored_unsigned(weight)
    return _product(unit, block_product, x, (weight, held), bias, (block, bits))


def chunk_product(unit: UnitSpec, x: Real, weight: Operand, bias: Real | None, block: int) -> Computation:
    """Return the real values of a product with `BrgemmChunks`."""
    assert weight.coding is not None
    held = [weight.constant.float(), weight.coding.scales.float(), weight.coding.zero_points.float()]
    codes, scale, zero = [tensor.T for tensor in held] if weight.channel_axis % 2 else held
    codes = codes - zero.repeat_interleave(codes.shape[1] // zero.shape[1], 1)
    return _product(unit, chunked_product, x, (weight, [codes, scale]), bias, (block,))


def _product(
    unit: UnitSpec, function: Callable[..., Tensor], x: Real, weight: tuple[Operand, list[Tensor]], bias: Real | None,
    how: tuple[Any, ...],
) -> Computation:  # fmt: skip
    operand, (codes, *others) = weight
    names = ("weight_scale", "weight_zero_point")
    named = [Constant(t.contiguous(), name) for t, name in zip(others, names, strict=False)]
    arguments = (x, Constant(codes.contiguous(), of=operand), *named, bias, *how)
    return bounded(unit, Computation(function, arguments, "value")) if unit.fused else Computation(function, arguments)
