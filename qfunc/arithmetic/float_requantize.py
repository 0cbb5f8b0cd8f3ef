"""Requantization in real units."""

from __future__ import annotations

from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.arithmetic.computation import Computation, Constant, Real, bounded
from qfunc.arithmetic.integers import SUMS_OF_PRODUCTS
from qfunc.arithmetic.products import Sums, products
from qfunc.arithmetic.unit import Coding, UnitSpec
from qfunc.numerics.kernels.requantize import (
    SMALLEST_BIAS,
    add_by_range,
    dequantize_acc,
    range_step,
    requantize_by_range,
    requantize_offset,
    requantize_through_real,
    weight_codes,
)
from qfunc.specs._check import ROUNDINGS, instance_of, one_of, refuse
from qfunc.specs._values import readable
from qfunc.specs.arithmetic.accumulator import Accumulator, canonical, is_accumulator


@readable
@frozen
class FloatRequantize:
    """v = float32(acc)*float32(s_x*s_w) + bias in real units, the activation there, y = R(v / s_y) + z.

    `fma`: one rounding for product and bias.  `division=False`: v * float32(1/s_y).  `reciprocals`: in place of
    float32(s_x*s_w) stands 1/(float32(1/s_x)*float32(1/s_w)), of a file that holds 1/s.  `quotient`: float32(acc) is divided by
    this product of reciprocals, in place of the product with its reciprocal.  `merged`: with a fused relu, v is in steps, with
    m / s_y for m and bias / s_y for the bias.  An output without qparams is v.

    `by_range`: each scale is (h - l)/n, and y = R(v r + c) + qmin with one rounding for product and sum.  Here l and h are
    the real values of qmin and qmax, n = qmax - qmin, r = n/(h - l) and c = -l n/(h - l), each step in float32.  With l = 0
    and no upper bound, r is 1/(1/r).  A fused addition of codes q' with step t is v (1/t) + q' - z', or (v - c' t)(1/t) + q' -
    qmin' for codes that a convolution reads, too; l and h are divided by t.

    Source: ncnn convolution_x86 (fma, half away, multiply, reciprocals), convolutiondepthwise_arm (quotient, measured),
        requantize_arm (merged); OpenVINO CPU (no fma, half even, divide; by range: measured, openvino 2026.4).

    >>> FloatRequantize("half_away", fma=True)
    FloatRequantize('half_away', fma=True)
    """

    rounding: str = field(default="half_even", validator=one_of(ROUNDINGS))
    fma: bool = field(default=False, validator=instance_of(bool))
    division: bool = field(default=True, validator=instance_of(bool))
    accumulator: int | Accumulator = field(default=32, converter=canonical, validator=is_accumulator)
    reciprocals: bool = field(default=False, validator=instance_of(bool))
    by_range: bool = field(default=False, validator=instance_of(bool), kw_only=True)
    quotient: bool = field(default=False, kw_only=True, validator=instance_of(bool))
    merged: bool = field(default=False, kw_only=True, validator=instance_of(bool))

    def __attrs_post_init__(self) -> None:
        if self.quotient and (self.fma or not self.reciprocals):
            do = 'Give FloatRequantize("half_away", reciprocals=True, quotient=True).'
            raise refuse(self, "quotient", True, "reciprocals, and no fma", do)

    @property
    def float_bias(self) -> bool:
        """True: the bias is a real number."""
        return True

    @property
    def fuses(self) -> tuple[str, ...]:
        """An addition, whose codes it returns."""
        return ("add",)

    def own_error(self, levels: int) -> float:
        """Return the error of x r + c by range: r and c have two roundings each."""
        return 2.0**-22 * levels if self.by_range else 0.0

    def refuses(self, unit: UnitSpec) -> str:
        """Return the reason why it does not compute the additions that are fused with a unit, or ""."""
        computed = sum(op.kind == "add" for op in unit.fused) <= (unit.output is not None)
        return "" if computed else "its integer kernel does not compute add, which is fused with it"

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes, or the real values, of sums of products."""
        if unit.kind not in SUMS_OF_PRODUCTS:
            raise unit.unfit(self, SUMS_OF_PRODUCTS)
        sums = products(unit, self.accumulator, float_bias=True)
        if unit.output is None:
            terms = self._real_terms(unit, sums)
            return bounded(unit, Computation(dequantize_acc, (sums.acc, *terms, self.fma, self.quotient), "value"))
        if self.by_range:
            return self._by_range(unit, sums)
        scale, (zero, low, high) = torch.tensor(unit.coding.scale, dtype=torch.float32), unit.code_range
        if self.merged and unit.every_clamp == [(0.0, None)]:
            terms = self._real_terms(unit, sums, 1 / scale)
            codes = (zero, max(low, zero), high, self.rounding, "after", self.fma)
            return Computation(requantize_offset, (sums.acc, *terms, *codes))
        other = None if unit.addend is None else Real(unit.addend)
        how = (float(scale), zero, low, high, self.rounding, self.fma, self.division, unit.clamps[0], other, self.quotient)
        return Computation(requantize_through_real, (sums.acc, *self._real_terms(unit, sums), *how))

    def _real_terms(self, unit: UnitSpec, sums: Sums, steps: Tensor | None = None) -> tuple[Constant, Constant]:
        # The multiplier, or the divisor, and the bias, in real units, or in steps of the output.
        m, offset = self._terms(unit, sums)
        if steps is not None:
            m, offset = m * steps, offset * steps
        return Constant(m, "multiplier"), Constant(offset, "offset")

    def _terms(self, unit: UnitSpec, sums: Sums) -> tuple[Tensor, Tensor]:
        offset = torch.zeros(()) if sums.bias is None else sums.bias
        if self.by_range:
            return _range_product(unit, sums.scale), _range_bias(sums.bias)
        if self.reciprocals:
            x, weight = _codings(unit)
            s_x, s_w = x.scales.float(), weight.scales.float().reshape(sums.scale.shape)
            m = (1 / s_x) * (1 / s_w)  # each step in float32
            return m if self.quotient else 1 / m, offset
        return sums.scale.float(), offset

    def _by_range(self, unit: UnitSpec, sums: Sums) -> Computation:
        (zero, low, high), coding = unit.code_range, unit.coding
        output = (coding.scale, zero, (coding.format.qmin, coding.format.qmax), (low, high))
        m, offset = Constant(_range_product(unit, sums.scale), "multiplier"), Constant(_range_bias(sums.bias), "offset")
        # OpenVINO's convolutions read unsigned bytes, so that signed codes are stored as q - qmin.
        how = "conv" in unit.readers, any(most is not None for _, most in unit.every_clamp)
        bounds, added = unit.clamps[0], unit.addend
        if added is not None and added.coding is not None:
            own, fmt = added.coding, added.coding.format
            other: tuple[Any, ...] = (added, own.scale, own.zero_point, fmt.qmin, fmt.qmax, "conv" in added.readers)
            return Computation(add_by_range, (sums.acc, m, offset, bounds, other, *output, *how))
        real = None if added is None else Real(added)
        return Computation(requantize_by_range, (sums.acc, m, offset, *output, *how, bounds, real))


def _codings(unit: UnitSpec) -> tuple[Coding, Coding]:
    x, weight = (o.coding for o in (unit.operand("input"), unit.operand("weight")) if o is not None)
    assert x is not None
    assert weight is not None
    return x, weight


def _range_product(unit: UnitSpec, product: Tensor) -> Tensor:
    # s_x s_w in float32, each scale the step of its range, in the shape of `product`.
    x, weight = _codings(unit)
    step = range_step(x.scale, x.zero_point, x.format.qmin, x.format.qmax)
    codes = weight_codes(weight.format.qmin, weight.format.qmax)
    return step * range_step(weight.scales, weight.zero_points.long(), *codes).reshape(product.shape)


def _range_bias(bias: Tensor | None) -> Tensor:
    # The bias that the file has.
    return bias if bias is not None and bool(bias.any()) else torch.tensor(SMALLEST_BIAS)
