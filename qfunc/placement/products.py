"""The integers that a unit multiplies and sums, and the range of the sums: a proof that they fit the accumulator."""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.errors import EmulationError
from qfunc.graph.constants import read_attr
from qfunc.numerics.sums.overflow import fits, outputs_first, range_of_sums
from qfunc.ops.node import attribute, channel_axis, slots
from qfunc.placement.encoding import Encoding, takes_float_bias
from qfunc.placement.partition import Partition
from qfunc.placement.units import Unit
from qfunc.specs import (
    Accumulator,
    DerivedQParams,
    FixedPoint,
    FloatMultiplier,
    FloatRequantize,
    SaturatesEachStep,
    Shift,
    Stages,
)

LARGEST_SHIFT = 40
"""A longer shift would not fit into 64 bits; scales that differ by more are a mistake."""


@frozen(eq=False)
class Products:
    """The weight and the bias of a unit, as integers.

    Attributes:
        input: The encoding of the input.
        weight: Codes minus their zero point, outputs along axis 0; a transposed convolution keeps [C, O/groups, ...].
        scale: s_x s_w in float64: one number, or one for each output.
        bias: Codes with the scale s_x s_w 2^-fraction_bits, or None.
        fraction_bits: The number of fractional bits of the accumulator.
        real_bias: A bias that is added as a real number, or None.
    """

    input: Encoding
    weight: Tensor
    scale: Tensor
    bias: Tensor | None = None
    fraction_bits: int = 0
    real_bias: Tensor | None = None

    def largest_offset(self) -> int:
        """Return the largest |x - z| of the input's codes."""
        return largest_offset(self.input)


def products_of(partition: Partition, unit: Unit, arithmetic: Any) -> Products | None:
    """Return the integers of a unit with a constant weight, or None for other units.

    Raises:
        EmulationError: a bias with a scale of its own that is no power of two from s_x s_w.
    """
    root = unit.group.root
    tensors = dict(slots(root))
    encoding = partition.encoding(tensors["weight"], root) if "weight" in tensors else None
    x = partition.encoding(tensors["input"], root) if "input" in tensors else None
    if encoding is None or x is None or unit.kind == "mul":
        return None
    codes = encoding.codes(read_attr(partition.network, tensors["weight"]))
    weight = (codes - encoding.qparams.zero_point.to(codes.dtype)).float()
    weight = weight.T if weight.ndim == 2 and channel_axis(root) else weight  # outputs first
    if weight.ndim != 2 and unit.kind == "matmul":
        return Products(x, weight, x.qparams.scale.double() * encoding.qparams.scale.double())
    scale = x.qparams.scale.double() * encoding.qparams.scale.double().flatten()
    if encoding.qparams.scale.ndim == 0:
        scale = scale.reshape(())
    elif unit.kind == "conv_transpose" and len(scale) > 1:
        scale = scale.repeat(attribute(root, "groups"))  # the weight has the outputs of one group
    bias_node, real_bias, bias, fraction_bits = tensors.get("bias"), None, None, 0
    if bias_node is not None:
        own = partition.encoding(bias_node, root)
        if own is None:
            real_bias = read_attr(partition.network, bias_node).detach().float()
        elif not isinstance(own.quantizer.module.site.value, DerivedQParams) and takes_float_bias(arithmetic):
            real_bias = own.quantizer.module(read_attr(partition.network, bias_node).detach()).float()
        else:
            bias, fraction_bits = _aligned_bias(partition, unit, bias_node, own, scale)
    return Products(x, weight, scale, bias, fraction_bits, real_bias)


def _aligned_bias(partition: Partition, unit: Unit, node: fx.Node, encoding: Encoding, product: Tensor) -> tuple[Tensor, int]:
    # (codes of the bias at the accumulator's scale s_x*s_w * 2^-n, n): n fractional bits, 0 if the bias needs none.
    codes = encoding.codes(read_attr(partition.network, node)).double()
    if isinstance(encoding.quantizer.module.site.value, DerivedQParams):
        return codes, 0
    shift = exponents(encoding.qparams.scale.double().flatten() / product, unit.path)
    fraction_bits = max(0, -int(shift.min()))
    return codes * torch.exp2((shift + fraction_bits).double()), fraction_bits


def largest_offset(encoding: Encoding) -> int:
    """Return the largest |x - z| of an encoding's codes."""
    return max(encoding.format.qmax - encoding.zero_point, encoding.zero_point - encoding.format.qmin)


def exponents(ratio: Tensor, path: str) -> Tensor:
    """Return log2 of ratios of scales that are powers of two, in int64.

    Raises:
        EmulationError: a ratio that is no power of two, or not in [2^-40, 2^40].
    """
    fraction, exponent = torch.frexp(ratio.double())
    if not bool((fraction == 0.5).all()) or int((exponent - 1).abs().max()) > LARGEST_SHIFT:
        do = "Calibrate with power-of-two scales (Scale(power_of_two=True)), and bound them by a Limit."
        wanted = f"powers of two, 2^-{LARGEST_SHIFT} to 2^{LARGEST_SHIFT} apart"
        raise EmulationError(where=f"unit {path!r}", found=f"scales by ratios of {ratio.tolist()}", wanted=wanted, do=do)
    return (exponent - 1).long()


def accumulator_of(arithmetic: object) -> Accumulator | None:
    """Return the accumulator of an arithmetic, or None if the arithmetic sums exactly.

    >>> accumulator_of(Shift("floor", accumulator=16))
    Accumulator(16)
    """
    if not isinstance(arithmetic, FloatMultiplier | FloatRequantize | FixedPoint | Shift | Stages):
        return None
    held = arithmetic.accumulator
    return Accumulator(held) if isinstance(held, int) else held


@frozen(eq=False)
class SumRange:
    """The least and the largest sum that a unit can have, and the accumulator that holds the sum.

    Attributes:
        accumulator: The accumulator.
        bits: Its width, with the fractional bits of the bias.
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
    if unit.kernel is None or accumulator is None or unit.kind not in SUMS_OF_PRODUCTS:
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


SUMS_OF_PRODUCTS = ("conv", "conv_transpose", "linear", "matmul", "mul")
"""The kinds of ops whose results are sums of products of two tensors."""


def _of_activations(partition: Partition, unit: Unit, accumulator: Accumulator) -> SumRange | None:
    encodings = [partition.encoding(n, unit.group.root) for _, n in slots(unit.group.root)]
    if len(encodings) != 2 or encodings[0] is None or encodings[1] is None:
        return None
    corners = [x * y for x in offsets(encodings[0]) for y in offsets(encodings[1])]
    low, high = torch.tensor([float(min(corners))]), torch.tensor([float(max(corners))])
    return SumRange(accumulator, accumulator.bits, low.double(), high.double(), unit.kind != "mul")


def offsets(encoding: Encoding) -> tuple[int, int]:
    """Return the least and the largest code of an encoding, minus the zero point."""
    return encoding.format.qmin - encoding.zero_point, encoding.format.qmax - encoding.zero_point
