"""Requantization by a shift."""

from __future__ import annotations

import torch
from attrs import field, frozen

from qfunc.arithmetic.computation import Computation, Constant
from qfunc.arithmetic.integers import SUMS_OF_PRODUCTS, exponents
from qfunc.arithmetic.products import products
from qfunc.arithmetic.unit import UnitSpec
from qfunc.numerics.kernels.addition import add_by_shifts
from qfunc.numerics.kernels.requantize import requantize_shift
from qfunc.specs._check import ROUNDINGS, one_of
from qfunc.specs._values import readable
from qfunc.specs.arithmetic.accumulator import Accumulator, canonical, is_accumulator


@readable
@frozen
class Shift:
    """y = R(acc * 2^-k): every scale is a power of two.

    Products, sums of two tensors, and biases with a power of two of their own: acc is exact, with as many
    bits behind the point as it needs, and is rounded once.

    Source: Vitis AI DPU, vart/cpu-runner/src/op/conv2d_fix.cpp and eltwise_fix.cpp (half up).

    >>> Shift("half_up")
    Shift('half_up')
    """

    rounding: str = field(validator=one_of(ROUNDINGS))
    accumulator: int | Accumulator = field(default=32, converter=canonical, validator=is_accumulator)

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of sums of products, or of a sum of two tensors."""
        if unit.kind == "add":
            return self._sum(unit)
        if unit.kind not in SUMS_OF_PRODUCTS:
            raise unit.unfit(self, (*SUMS_OF_PRODUCTS, "add"))
        sums, scale = products(unit, self.accumulator), torch.tensor(unit.coding.scale, dtype=torch.float32)
        shift = Constant(-exponents(sums.scale / scale.double(), unit.path), "shift")
        return Computation(requantize_shift, (sums.acc, shift, *unit.code_range, self.rounding))

    def _sum(self, unit: UnitSpec) -> Computation:
        # Both terms exactly at the finer scale, then one rounding shift.
        a, b = unit.coded_inputs
        scales = torch.tensor([x.coding.scale for x in (a, b)], dtype=torch.float64)
        k = -exponents(scales / unit.coding.scale, unit.path)
        shift = int(k.max())
        left, zeros = [shift - int(v) for v in k], (a.coding.zero_point, b.coding.zero_point)
        return Computation(add_by_shifts, (a, b, zeros, left, shift, self.rounding, *unit.code_range))
