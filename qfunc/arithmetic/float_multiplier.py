"""Requantization by a float multiplier, and the two sides of leaky_relus and prelus."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from attrs import field, frozen

from qfunc.arithmetic.computation import Computation, Constant, bounded
from qfunc.arithmetic.integers import SUMS_OF_PRODUCTS
from qfunc.arithmetic.products import products
from qfunc.arithmetic.unit import UnitSpec, axes_of_mean
from qfunc.numerics.kernels.activations import prelu_codes, scale_channels
from qfunc.numerics.kernels.integer import global_average_codes, requantize
from qfunc.numerics.kernels.pooling import mean_scaled
from qfunc.numerics.kernels.requantize import dequantize_acc, requantize_offset
from qfunc.specs._check import ROUNDINGS, instance_of, one_of, refuse
from qfunc.specs._values import readable
from qfunc.specs.arithmetic.accumulator import Accumulator, canonical, is_accumulator


@readable
@frozen
class FloatMultiplier:
    """y = R(float32(acc) * M) + z in float32, with M = float32(float32(s_x*s_w) / s_y).

    `zero_point="before"`: z is added before R.  `fma`: that addition is fused with the product.
    `float_bias`: the bias stays float and enters as bias/s_y (MNN) instead of into acc as an int32.  An output without
    qparams is float32(acc) * float32(s_x*s_w).

    `dtype="float64"`: each step is in float64, in which acc and s_x*s_w are exact; an output without qparams is rounded to
    float32 at the end.  Of products, with or without constant weights; means and prelus have float32, and so has `fma`.

    Source: ONNX Runtime MLAS, XNNPACK qs8 "fp32" requantization, MNN.

    >>> FloatMultiplier(zero_point="before")
    FloatMultiplier(zero_point='before')
    """

    rounding: str = field(default="half_even", validator=one_of(ROUNDINGS))
    zero_point: str = field(default="after", validator=one_of(("after", "before")))
    fma: bool = field(default=False, validator=instance_of(bool))
    float_bias: bool = field(default=False, validator=instance_of(bool))
    accumulator: int | Accumulator = field(default=32, converter=canonical, validator=is_accumulator)
    dtype: str = field(default="float32", kw_only=True, validator=one_of(("float32", "float64")))

    def __attrs_post_init__(self) -> None:
        if self.fma and self.dtype != "float32":
            do = "Leave out one of them: no known kernel fuses in float64."
            raise refuse(self, "dtype", self.dtype, '"float32" with fma', do)

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of sums of products, means and prelus, or the real values of sums of products."""
        if unit.kind in SUMS_OF_PRODUCTS:
            return self._requantized(unit)
        if unit.kind in ("mean", "global_avg_pool"):
            return self._mean(unit)
        if unit.kind == "prelu":
            return self._prelu(unit)
        raise unit.unfit(self, (*SUMS_OF_PRODUCTS, "mean", "global_avg_pool", "prelu"))

    def _requantized(self, unit: UnitSpec) -> Computation:
        sums, dtype = products(unit, self.accumulator, self.float_bias), getattr(torch, self.dtype)
        zeros = torch.zeros(()) if sums.bias is None else sums.bias
        if unit.output is None:
            m, offset = (sums.scale, zeros.double()) if dtype == torch.float64 else (sums.scale.float(), zeros)
            terms = (Constant(m, "multiplier"), Constant(offset, "offset"))
            return bounded(unit, Computation(dequantize_acc, (sums.acc, *terms, self.fma, False), "value"))
        scale = torch.tensor(unit.coding.scale, dtype=torch.float32).to(dtype)
        how: tuple[Any, ...] = (*unit.code_range, self.rounding, self.zero_point)
        multiplier = Constant(sums.scale.to(dtype) / scale, "multiplier")
        if sums.bias is None and not self.fma:
            return Computation(requantize, (sums.acc, multiplier, *how))
        offset = torch.zeros((), dtype=dtype) if sums.bias is None else sums.bias.to(dtype) / scale
        return Computation(requantize_offset, (sums.acc, multiplier, Constant(offset, "offset"), *how, self.fma))

    def _mean(self, unit: UnitSpec) -> Computation:
        (x, *_), (dims, keep) = unit.coded_inputs, axes_of_mean(unit)
        if unit.kind == "global_avg_pool" and self.zero_point == "after" and self.dtype == "float32":
            scales = (x.coding.zero_point, x.coding.scale, unit.coding.scale)
            return Computation(global_average_codes, (x, *scales, *unit.code_range, self.rounding, unit.arguments["keepdim"]))
        if self.dtype != "float32":
            wanted = "FloatMultiplier() or FloatKernel('float64', wide=True)"
            raise unit.error(f"{self!r} for an op of kind {unit.kind!r}", wanted)
        how = (*unit.code_range, self.rounding, self.zero_point, self.fma)
        return Computation(mean_scaled, (x, x.coding.zero_point, x.coding.scale, dims, keep, unit.coding.scale, *how))

    def _prelu(self, unit: UnitSpec) -> Computation:
        if self.zero_point != "after" or self.dtype != "float32":
            wanted = "FloatMultiplier(zero_point='after') in float32"
            raise unit.error(f"{self!r} for an op of kind 'prelu'", wanted)
        sides = both_sides(unit)
        s_x, s_y = torch.tensor(sides.scale), torch.tensor(unit.coding.scale)
        multipliers = [float(m) for m in (s_x / s_y, s_x * sides.slope / s_y)]
        return Computation(prelu_codes, (sides.above, sides.below, multipliers, *unit.code_range, self.rounding))


class Sides(NamedTuple):
    """x - z above 0, what is multiplied below 0, the scale of x, and the slope below 0 in units of `below`."""

    above: Computation
    below: Computation
    scale: float
    slope: float


def both_sides(unit: UnitSpec) -> Sides:
    """Return the two sides of a leaky_relu, or of a prelu, whose slopes are codes."""
    x, *_ = unit.coded_inputs
    centred = Computation(operator.sub, (x, x.coding.zero_point), "centred")
    if unit.kind == "leaky_relu":
        slope = float(torch.tensor(float(unit.arguments["negative_slope"])))  # as a file has it
        return Sides(centred, centred, x.coding.scale, slope)
    weight = unit.operand("weight")
    assert weight is not None
    assert weight.coding is not None
    slopes = Constant((weight.constant - weight.coding.zero_points).float(), of=weight)
    below = Computation(scale_channels, (centred, slopes), "sloped")
    return Sides(centred, below, x.coding.scale, float(weight.coding.scales.float()))
