"""Requantization in two stages: a product with an addend, then a table of line segments."""

from __future__ import annotations

import torch
from attrs import field, frozen

from qfunc.arithmetic.computation import Computation, Constant
from qfunc.arithmetic.integers import integers_of, sum_range
from qfunc.arithmetic.products import products
from qfunc.arithmetic.unit import UnitSpec
from qfunc.specs._check import instance_of
from qfunc.specs._values import readable
from qfunc.specs.arithmetic.accumulator import Accumulator, canonical, is_accumulator
from qfunc.specs.arithmetic.stages import ScaleStage, SegmentStage
from qfunc.targets.k210.stage_functions import largest_sums, requantize_stages, stage_numbers


@readable
@frozen
class Stages:
    """Two roundings one after the other: those of `first`, whose result v has the scale s_v, and those of `then`.

    s_v = s_y * 2^-k, with the largest k for which m, b, v and f fit: |M| < 2^(bits - 1), and for every sum that the
    weights and the codes allow |R(acc * M)| + |b| < 2^(value - 1).  The bias is a real number.

    Source: nncase, modules/k210, kernels/k210/k210_kernels.h (kpu_conv2d) and transforms/k210/kpu_conv2d.cpp.

    >>> KPU.then.shift
    43
    """

    first: ScaleStage = field(validator=instance_of(ScaleStage))
    then: SegmentStage = field(validator=instance_of(SegmentStage))
    accumulator: int | Accumulator = field(default=36, converter=canonical, validator=is_accumulator)

    @property
    def float_bias(self) -> bool:
        """True: the bias is a real number."""
        return True

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of convolutions and linear layers with constant weights.

        Raises:
            EmulationError: products of two activations, or sums that do not fit the widths of the stages.
        """
        if unit.kind not in ("conv", "linear"):
            raise unit.unfit(self, ("conv", "linear"))
        product = products(unit, self.accumulator, float_bias=True)
        sums = sum_range(unit, self.accumulator, integers_of(unit, float_bias=True))
        if sums is None or sums.per_product:
            raise unit.error(f"{self!r} without weights", "constant weights")
        scale = torch.tensor(unit.coding.scale, dtype=torch.float64)
        ratio, largest = product.scale / scale, largest_sums(sums.low, sums.high)
        offset = torch.zeros((), dtype=torch.float64) if product.bias is None else product.bias.double() / scale
        ends = unit.coding.format.qmin, unit.coding.format.qmax
        numbers = stage_numbers(self.first, self.then, ratio, offset, largest, unit.code_range, ends)
        if numbers is None:
            raise unit.error(
                f"sums up to {float((largest * ratio.flatten()).max()):.4g} steps of the output and a bias of "
                f"{float(offset.abs().max()):.4g}",
                f"at most 2^{self.first.value - 1} steps, and a multiplier of {self.first.bits} bits",
                "Calibrate with batches in which the output has its full range.",
            )
        tensors = zip(numbers[:3], (ratio, ratio, offset), ("multiplier", "shift", "addend"), strict=True)
        m, e, b = (Constant(t.reshape(like.shape), name) for t, like, name in tensors)
        segments, roundings = [list(s) for s in numbers.segments], [self.first.rounding, self.then.rounding]
        return Computation(requantize_stages, (product.acc, m, e, b, segments, roundings, *unit.code_range[1:]))


KPU = Stages(ScaleStage("floor", 22, shift=15), SegmentStage("half_even", shift=43))
"""The arithmetic of the KPU of Kendryte's K210."""
