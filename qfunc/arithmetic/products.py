"""The accumulators of convolutions, linear layers, matmuls and products of two tensors."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor

from qfunc.arithmetic.computation import Computation, Constant
from qfunc.arithmetic.integers import Integers, integers_of
from qfunc.arithmetic.overflow import stored_sums
from qfunc.arithmetic.unit import UnitSpec
from qfunc.numerics.kernels.accumulators import (
    EXACT_FLOAT32,
    conv_codes,
    conv_transpose_codes,
    exact_chunks,
    linear_codes,
    matmul_codes,
    product_codes,
)
from qfunc.numerics.kernels.requantize import add_fractional_bias
from qfunc.specs import Accumulator


class Sums(NamedTuple):
    """The accumulators of a unit; their real values are acc * scale + bias.

    Attributes:
        acc: The sums of products of codes minus zero points, with a bias whose scale is `scale`.
        scale: s_x s_w in float64: one number, or one for each output, in a shape that broadcasts with `acc`.
        bias: A bias that is real or has a scale of its own, in float32 and in such a shape, or None.
    """

    acc: Computation
    scale: Tensor
    bias: Tensor | None = None


def products(
    unit: UnitSpec, accumulator: int | Accumulator | None = None, float_bias: bool = False, multiplier_bits: int | None = None
) -> Sums:
    """Return the accumulators of a unit.

    Args:
        unit: A "conv", "conv_transpose", "linear", "matmul" or "mul" with coded operands.
        accumulator: The register for the sums, or its number of bits; None sums exactly.
        float_bias: True adds a bias with a scale of its own as a real number; False aligns it with the accumulator.
        multiplier_bits: The bits of a multiplier, if a sum times it is stored in 64 bits.
    Raises:
        EmulationError: sums or products that no integer of 64 bits holds, or a bias that has another scale and that the
            accumulator cannot hold.
    """
    integers = integers_of(unit, float_bias)
    if integers is None:
        a, b = (o for o in unit.operands if o.slot and o.at == 0)
        assert a.coding is not None
        assert b.coding is not None
        largest = math.prod(float(o.largest_offset) for o in (a.coding, b.coding))
        function, name = (product_codes, "product") if unit.kind == "mul" else (matmul_codes, "acc")
        acc = Computation(function, (a, a.coding.zero_point, b, b.coding.zero_point, largest), name)
        return Sums(_stored(unit, acc, accumulator, None, multiplier_bits), a.coding.scales.double() * b.coding.scales.double())
    return _weighted_sums(unit, integers, accumulator, multiplier_bits)


def _stored(
    unit: UnitSpec, acc: Computation, accumulator: int | Accumulator | None, integers: Integers | None, bits: int | None
) -> Computation:
    return acc if accumulator is None else stored_sums(unit, acc, accumulator, integers, bits)


def _weighted_sums(unit: UnitSpec, integers: Integers, accumulator: int | Accumulator | None, bits: int | None) -> Sums:
    x, weight, largest = integers.input, integers.weight, integers.largest_offset()
    assert x.coding is not None
    zero, held = x.coding.zero_point, Constant(weight.contiguous(), of=unit.operand("weight"))
    if weight.ndim != 2 and unit.kind == "matmul":
        acc = Computation(matmul_codes, (x, zero, held, 0, float(largest * weight.abs().max())), "acc")
        return Sums(_stored(unit, acc, accumulator, integers, bits), integers.scale)
    whole = float(weight.abs().double().flatten(1).sum(1).max()) * largest
    bias, n = None, integers.fraction_bits
    if integers.bias is not None:
        small = whole + float(integers.bias.abs().max()) < EXACT_FLOAT32
        bias = Constant(integers.bias.float() if small else integers.bias, of=unit.operand("bias"))
    acc = _sum(unit, (x, zero, held, None if n else bias), integers, whole)
    spatial = weight.ndim - 2 if unit.kind in ("conv", "conv_transpose") else 0
    if n:
        acc = Computation(add_fractional_bias, (acc, bias, n, spatial), "sum")
    acc, scale, shape = _stored(unit, acc, accumulator, integers, bits), integers.scale * 2.0**-n, (-1, *[1] * spatial)
    if not spatial:
        return Sums(acc, scale, integers.real_bias)
    real_bias = None if integers.real_bias is None else integers.real_bias.reshape(shape)
    return Sums(acc, scale.reshape(shape) if scale.ndim else scale, real_bias)


def _sum(unit: UnitSpec, operands: tuple[Any, ...], integers: Integers, whole: float) -> Computation:
    ends, arguments = exact_chunks(integers.weight, integers.largest_offset()), unit.arguments
    if unit.kind == "conv_transpose":
        names = ("stride", "padding", "output_padding", "groups", "dilation")
        return Computation(conv_transpose_codes, (*operands, *(arguments[n] for n in names)), "acc")
    if unit.kind != "conv":
        return Computation(linear_codes, (*operands, ends), "acc")
    groups = arguments["groups"]
    if groups > 1:
        ends = [integers.weight.shape[1]] if whole < EXACT_FLOAT32 else []
    return Computation(conv_codes, (*operands, *(arguments[n] for n in ("stride", "padding", "dilation")), groups, ends), "acc")
