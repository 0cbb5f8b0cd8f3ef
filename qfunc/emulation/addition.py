"""Emulate additions of codes."""

from __future__ import annotations

import math
from collections.abc import Set
from fractions import Fraction

import torch
from torch import fx

from qfunc.emulation.context import UnitContext, operand_codes
from qfunc.errors import EmulationError
from qfunc.numerics.kernels import fixed_point
from qfunc.numerics.kernels.addition import add_by_shifts, add_codes, add_scaled, add_shifted
from qfunc.ops.node import slots
from qfunc.placement.products import exponents
from qfunc.placement.units import Unit
from qfunc.specs import Shift, SumFma, SumScaled, SumShifted


def sum_fma(job: UnitContext, arithmetic: SumFma) -> fx.Node:
    """Return the node of a `specs.SumFma` unit."""
    (a, b), (zero, low, high) = operand_codes(job), job.range()
    return job.emitter.call(
        add_codes, a.node, a.encoding.scale, a.encoding.zero_point, b.node, b.encoding.scale, b.encoding.zero_point,
        job.output.scale, zero, low, high, arithmetic.rounding, shares_layout_with_convolution(job), arithmetic.fma,
        name=job.name, result=True,
    )  # fmt: skip


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


def sum_shifted(job: UnitContext, arithmetic: SumShifted) -> fx.Node:
    """Return the node of a `specs.SumShifted` unit.

    Raises:
        EmulationError: the ratio of the scales is so large that the sum may need more bits.
    """
    # TFLite: both inputs are rescaled to twice the larger scale and shifted left; the sum is rescaled to the output.
    a, b = operand_codes(job)
    ratios = [v.encoding.scale / job.output.scale for v in (a, b)]
    span, (_, low, _) = max(v.encoding.format.qmax - v.encoding.format.qmin for v in (a, b)), job.range()
    bits = 32
    if sum(ratios) * span >= 2.0 ** (bits - 1) + min(low, -128):
        raise _scale_error(job, ratios, f"a sum of {bits} bits")
    sign = -1 if job.unit.kind == "sub" else 1
    double_scale = 2 * max(a.encoding.scale, b.encoding.scale)
    scales = [
        a.encoding.scale / double_scale,
        b.encoding.scale / double_scale,
        double_scale / (2.0**arithmetic.left_shift * job.output.scale),
    ]
    pairs = [tuple(int(t) for t in fixed_point.fixed_multiplier(torch.tensor(s, dtype=torch.float64))) for s in scales]
    zeros = (a.encoding.zero_point, b.encoding.zero_point)
    return job.emitter.call(
        add_shifted,
        a.node,
        b.node,
        zeros,
        pairs,
        arithmetic.left_shift,
        list(arithmetic.steps),
        *job.range(),
        sign,
        arithmetic.lanes,
        shares_layout_with_convolution(job),
        arithmetic.bits,
        name=job.name,
        result=True,
    )


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


def sum_shift(job: UnitContext, arithmetic: Shift) -> fx.Node:
    """Return the node of an addition by `specs.Shift`: both terms exactly at the finer scale, then one rounding shift."""
    a, b = operand_codes(job)
    scales = torch.tensor([v.encoding.scale for v in (a, b)], dtype=torch.float64)
    k = -exponents(scales / job.output.scale, job.unit.path)
    shift = int(k.max())
    left = [shift - int(v) for v in k]
    zeros = (a.encoding.zero_point, b.encoding.zero_point)
    return job.emitter.call(
        add_by_shifts, a.node, b.node, zeros, left, shift, arithmetic.rounding, *job.range(), name=job.name, result=True
    )
