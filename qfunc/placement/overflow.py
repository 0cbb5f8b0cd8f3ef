"""Accumulators that a unit's sums may not fit in: a proof from weights and ranges, for each output channel."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from qfunc.numerics.kernels.overflow import fits, outputs_first, range_of_sums
from qfunc.ops.node import attribute, slots
from qfunc.placement.encoding import Encoding
from qfunc.placement.partition import Partition, Unit
from qfunc.placement.products import Products, products_of
from qfunc.specs import Accumulator, SaturatesEachStep
from qfunc.specs.arithmetic.accumulator import accumulator_of


@frozen(eq=False)
class SumRange:
    """The least and the largest sum that a unit can have, and the accumulator that holds the sum.

    Attributes:
        accumulator: The accumulator.
        bits: Its width, with the bits behind the point of the bias.
        low, high: For each output channel; with `per_product`, of one product in place of the sum, because the number of
            products is that of a tensor's axis.
        per_product: True for products of two activations.
    """

    accumulator: Accumulator
    bits: int
    low: Tensor
    high: Tensor
    per_product: bool = False

    @property
    def at_risk(self) -> Tensor:
        """The output channels whose sums may overflow, as booleans."""
        if self.per_product:
            return torch.ones_like(self.low, dtype=torch.bool)
        return ~fits(self.low, self.high, self.bits)

    @property
    def largest(self) -> float:
        """The largest absolute value of a sum, or of a product."""
        return float(torch.maximum(self.low.abs(), self.high.abs()).max())

    @property
    def safe_length(self) -> int:
        """The number of products whose sum cannot overflow."""
        return int((2.0 ** (self.bits - 1) - 1) // max(self.largest, 1.0))


def range_of_unit(partition: Partition, unit: Unit, products: Products | None = None) -> SumRange | None:
    """Return the range of a unit's sums of products, or None for a unit that has none, or that sums exactly.

    Args:
        partition, unit: The unit.
        products: Its integers, if they are known.
    """
    accumulator = None if unit.kernel is None or not unit.integer else accumulator_of(unit.kernel.arithmetic)
    if unit.kernel is None or accumulator is None or unit.kind not in _SUMS:
        return None
    products = products or products_of(partition, unit, unit.kernel.arithmetic)
    if products is None:
        return _of_activations(partition, unit, accumulator)
    weight = products.weight
    if unit.kind == "conv_transpose":
        weight = outputs_first(weight, attribute(unit.group.root, "groups"))
    elif unit.kind == "matmul" and weight.ndim != 2:
        # A vector is one output; of matrices, each has its columns as outputs.
        weight = weight[None] if weight.ndim == 1 else weight.mT.reshape(-1, weight.shape[-2])
    low, high = offsets(products.input)
    partial = isinstance(accumulator.overflow, SaturatesEachStep)
    n = products.fraction_bits
    return SumRange(accumulator, accumulator.bits + n, *range_of_sums(weight * 2.0**n, low, high, products.bias, partial))


_SUMS = ("conv", "conv_transpose", "linear", "matmul", "mul")


def _of_activations(partition: Partition, unit: Unit, accumulator: Accumulator) -> SumRange | None:
    codings = [partition.coding(n, unit.group.root) for _, n in slots(unit.group.root)]
    if len(codings) != 2 or codings[0] is None or codings[1] is None:
        return None
    corners = [x * y for x in offsets(codings[0]) for y in offsets(codings[1])]
    low, high = torch.tensor([float(min(corners))]), torch.tensor([float(max(corners))])
    return SumRange(accumulator, accumulator.bits, low.double(), high.double(), unit.kind != "mul")


def offsets(coding: Encoding) -> tuple[int, int]:
    """Return the least and the largest code of an encoding, minus the zero point."""
    return coding.format.qmin - coding.zero_point, coding.format.qmax - coding.zero_point


__all__ = ["SumRange", "offsets", "range_of_unit"]
