"""The integers that a unit with a weight multiplies and sums: the codes of its weight and its bias."""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.errors import EmulationError
from qfunc.graph.constants import read_attr
from qfunc.ops.node import channel_axis, slots
from qfunc.placement.encoding import Encoding, takes_float_bias
from qfunc.placement.partition import Partition, Unit
from qfunc.specs import DerivedQParams

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
        fraction_bits: The number of bits of the accumulator behind the point.
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
    coding = partition.coding(tensors["weight"], root) if "weight" in tensors else None
    x = partition.coding(tensors["input"], root) if "input" in tensors else None
    if coding is None or x is None or unit.kind == "mul":
        return None
    codes = coding.codes(read_attr(partition.network, tensors["weight"]))
    weight = (codes - coding.qparams.zero_point.to(codes.dtype)).float()
    weight = weight.T if weight.ndim == 2 and channel_axis(root) else weight  # outputs first
    if weight.ndim != 2 and unit.kind == "matmul":
        return Products(x, weight, x.qparams.scale.double() * coding.qparams.scale.double())
    scale = x.qparams.scale.double() * coding.qparams.scale.double().flatten()
    if coding.qparams.scale.ndim == 0:
        scale = scale.reshape(())
    bias_node, real_bias, bias, fraction_bits = tensors.get("bias"), None, None, 0
    if bias_node is not None:
        own = partition.coding(bias_node, root)
        if own is None:
            real_bias = read_attr(partition.network, bias_node).detach().float()
        elif not isinstance(own.quantizer.module.site.value, DerivedQParams) and takes_float_bias(arithmetic):
            real_bias = own.quantizer.module(read_attr(partition.network, bias_node).detach()).float()
        else:
            bias, fraction_bits = _aligned_bias(partition, unit, bias_node, own, scale)
    return Products(x, weight, scale, bias, fraction_bits, real_bias)


def _aligned_bias(partition: Partition, unit: Unit, node: fx.Node, coding: Encoding, product: Tensor) -> tuple[Tensor, int]:
    # (codes of the bias at the accumulator's scale s_x*s_w * 2^-n, n): n fractional bits, 0 if the bias needs none.
    codes = coding.codes(read_attr(partition.network, node)).double()
    if isinstance(coding.quantizer.module.site.value, DerivedQParams):
        return codes, 0
    shift = exponents(coding.qparams.scale.double().flatten() / product, unit.path)
    fraction_bits = max(0, -int(shift.min()))
    return codes * torch.exp2((shift + fraction_bits).double()), fraction_bits


def largest_offset(coding: Encoding) -> int:
    """Return the largest |x - z| of an encoding's codes."""
    return max(coding.format.qmax - coding.zero_point, coding.zero_point - coding.format.qmin)


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
