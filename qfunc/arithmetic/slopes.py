"""The two sides of leaky_relus and prelus."""

from __future__ import annotations

import operator
from typing import NamedTuple

import torch

from qfunc.arithmetic.computation import Computation, Constant
from qfunc.arithmetic.unit import UnitSpec
from qfunc.numerics.kernels.activations import scale_channels


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


__all__ = ["Sides", "both_sides"]
