"""The integers that a unit multiplies and sums, and the range of the sums: a proof that they fit the accumulator."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from qfunc.arithmetic.unit import Operand, UnitSpec
from qfunc.errors import EmulationError
from qfunc.numerics.sums.overflow import fits, outputs_first, range_of_sums
from qfunc.specs import Accumulator, SaturatesEachStep

LARGEST_SHIFT = 40
"""A longer shift would not fit into 64 bits; scales that differ by more are a mistake."""
SUMS_OF_PRODUCTS = ("conv", "conv_transpose", "linear", "matmul", "mul")
"""The kinds of ops whose results are sums of products of two tensors."""


@frozen(eq=False)
class Integers:
    """The weight and the bias of a unit, as integers.

    Attributes:
        input: The input.
        weight: Codes minus their zero point, outputs along axis 0; a transposed convolution keeps [C, O/groups, ...].
        scale: s_x s_w in float64: one number, or one for each output.
        bias: Codes with the scale s_x s_w 2^-fraction_bits, or None.
        fraction_bits: The number of fractional bits of the accumulator.
        real_bias: A bias that is added as a real number, or None.
    """

    input: Operand
    weight: Tensor
    scale: Tensor
    bias: Tensor | None = None
    fraction_bits: int = 0
    real_bias: Tensor | None = None

    def largest_offset(self) -> int:
        """Return the largest |x - z| of the input's codes."""
        assert self.input.coding is not None
        return self.input.coding.largest_offset


def integers_of(unit: UnitSpec, float_bias: bool = False) -> Integers | None:
    """Return the integers of a unit with a constant weight, or None for other units.

    Args:
        unit: The unit.
        float_bias: True if the arithmetic adds a bias with a scale of its own as a real number.
    Raises:
        EmulationError: a bias with a scale of its own that is no power of two from s_x s_w.
    """
    w, x, bias_of = (unit.operand(slot) for slot in ("weight", "input", "bias"))
    if w is None or x is None or w.coding is None or x.coding is None or unit.kind == "mul":
        return None
    weight = (w.constant - w.coding.zero_points.to(w.constant.dtype)).float()
    weight = weight.T if weight.ndim == 2 and w.channel_axis else weight  # outputs first
    if weight.ndim != 2 and unit.kind == "matmul":
        return Integers(x, weight, x.coding.scales.double() * w.coding.scales.double())
    scale = x.coding.scales.double() * w.coding.scales.double().flatten()
    if w.coding.scales.ndim == 0:
        scale = scale.reshape(())
    elif unit.kind == "conv_transpose" and len(scale) > 1:
        scale = scale.repeat(unit.arguments["groups"])  # the weight has the outputs of one group
    real_bias, bias, fraction_bits = None, None, 0
    if bias_of is not None:
        if bias_of.coding is None or (not bias_of.coding.derived and float_bias):
            real_bias = bias_of.real
        else:
            bias, fraction_bits = _aligned_bias(unit, bias_of, scale)
    return Integers(x, weight, scale, bias, fraction_bits, real_bias)


def _aligned_bias(unit: UnitSpec, bias: Operand, product: Tensor) -> tuple[Tensor, int]:
    # (codes of the bias at the accumulator's scale s_x*s_w * 2^-n, n): n fractional bits, 0 if the bias needs none.
    codes, coding = bias.constant.double(), bias.coding
    assert coding is not None
    if coding.derived:
        return codes, 0
    shift = exponents(coding.scales.double().flatten() / product, unit.path)
    fraction_bits = max(0, -int(shift.min()))
    return codes * torch.exp2((shift + fraction_bits).double()), fraction_bits


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


def sum_range(unit: UnitSpec, accumulator: int | Accumulator, integers: Integers | None) -> SumRange | None:
    """Return the range of a unit's sums of products, or None for a unit that has none.

    Args:
        unit: The unit.
        accumulator: Its accumulator, or the number of bits.
        integers: Its integers; None for products of two activations.
    """
    held = Accumulator(accumulator) if isinstance(accumulator, int) else accumulator
    if unit.kind not in SUMS_OF_PRODUCTS:
        return None
    if integers is None:
        return _of_activations(unit, held)
    weight = integers.weight
    if unit.kind == "conv_transpose":
        weight = outputs_first(weight, unit.arguments["groups"])
    elif unit.kind == "matmul" and weight.ndim != 2:
        # A vector is one output; of matrices, each has its columns as outputs.
        weight = weight[None] if weight.ndim == 1 else weight.mT.reshape(-1, weight.shape[-2])
    assert integers.input.coding is not None
    partial = isinstance(held.overflow, SaturatesEachStep)
    n = integers.fraction_bits
    ends = range_of_sums(weight * 2.0**n, *integers.input.coding.offsets, integers.bias, partial)
    return SumRange(held, held.bits + n, *ends)


def _of_activations(unit: UnitSpec, accumulator: Accumulator) -> SumRange | None:
    codings = [o.coding for o in unit.operands if o.slot and o.at == 0]
    if len(codings) != 2 or codings[0] is None or codings[1] is None:
        return None
    corners = [x * y for x in codings[0].offsets for y in codings[1].offsets]
    low, high = torch.tensor([float(min(corners))]), torch.tensor([float(max(corners))])
    return SumRange(accumulator, accumulator.bits, low.double(), high.double(), unit.kind != "mul")
