"""Emulate additions of codes."""

from __future__ import annotations

import math
from collections.abc import Set
from fractions import Fraction

import torch
from torch import fx

from qfunc.emulation.context import UnitContext, operand_codes
from qfunc.errors import EmulationError
from qfunc.numerics.kernels.addition import add_scaled
from qfunc.ops.node import slots
from qfunc.placement.units import Unit
from qfunc.specs import SumScaled

# The ops through which ONNX Runtime passes its blocked layout: a choice of the runtime, no trait of the ops.
_KEEPS_LAYOUT = ("add", "mul", "max_pool", "avg_pool", "global_avg_pool", "concat", "sigmoid", "leaky_relu", "relu", "clip")


def shares_layout_with_convolution(job: UnitContext) -> bool:
    """Return True if only ops that keep the layout are between a unit and an integer convolution before it.

    ONNX Runtime stores their images with channels last, which decides the order of some sums.
    """
    return _reads(job.unit, job.emitter.channels_last)


def writes_channels_last(unit: Unit, before: Set[str]) -> bool:
    """Return True if an integer unit writes the layout of a convolution; `before` are the outputs before it that have it."""
    return unit.integer and (unit.kind == "conv" or (unit.kind in _KEEPS_LAYOUT and _reads(unit, before)))


def _reads(unit: Unit, outputs: Set[str]) -> bool:
    return any(n.name in outputs for node in unit.group.nodes for _, n in slots(node))


def scaled_multipliers(job: UnitContext, arithmetic: SumScaled) -> tuple[list[int], int] | None:
    """Return the multipliers of a `specs.SumScaled` unit and their shift; None for scales outside of its ranges."""
    # Both multipliers have one shift, which gives the larger one all its bits.
    ratios = _ratios(job)
    if not all(2.0**arithmetic.least <= r < 2**8 for r in ratios) or max(ratios) < 2**-10:
        return None
    shift = arithmetic.bits - math.frexp(max(ratios))[1]
    m = [round(Fraction(r) * Fraction(2) ** shift) for r in ratios]
    return None if arithmetic.outside is not None and max(m) >= 2**arithmetic.bits else (m, shift)


def _ratios(job: UnitContext) -> list[float]:
    return [float(torch.tensor(v.encoding.scale) / torch.tensor(job.output.scale)) for v in operand_codes(job)]


def sum_scaled(job: UnitContext, arithmetic: SumScaled) -> fx.Node:
    """Return the node of a `specs.SumScaled` unit.

    Raises:
        EmulationError: a ratio of scales that the arithmetic does not take.
    """
    a, b = operand_codes(job)
    found = scaled_multipliers(job, arithmetic)
    if found is None:
        raise _scale_error(job, _ratios(job), f"ratios in [2^{arithmetic.least}, 2^8)")
    m, shift = found
    m[1] = -m[1] if job.unit.kind == "sub" else m[1]
    zeros = (a.encoding.zero_point, b.encoding.zero_point)
    return job.emitter.call(
        add_scaled, a.node, b.node, zeros, m, shift, arithmetic.rounding, *job.range(), name=job.name, result=True
    )


def _scale_error(job: UnitContext, ratios: list[float], wanted: str) -> EmulationError:
    do = "Calibrate on inputs of similar range, or choose another arithmetic in the target's kernels."
    found = f"inputs with {ratios} times the scale of the output"
    return EmulationError(where=f"unit {job.unit.path!r}", found=found, wanted=wanted, do=do)
