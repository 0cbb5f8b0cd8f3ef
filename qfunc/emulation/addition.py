"""Emulate additions of codes."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import fx

from qfunc.emulation.context import UnitContext, both_operands, exponents
from qfunc.errors import EmulationError
from qfunc.numerics.kernels import fixed_point
from qfunc.numerics.kernels.addition import add_by_shifts, add_codes, add_scaled, add_shifted
from qfunc.ops.node import slots
from qfunc.specs import Shift, SumFma, SumScaled, SumShifted


def sum_fma(job: UnitContext, arithmetic: SumFma) -> fx.Node:
    """The node of a `specs.SumFma` unit."""
    (a, b), (zero, low, high) = both_operands(job), job.range()
    return job.emitter.call(
        add_codes, a.node, a.coding.scale, a.coding.zero_point, b.node, b.coding.scale, b.coding.zero_point,
        job.output.scale, zero, low, high, arithmetic.rounding, shares_layout_with_convolution(job), name=job.name, result=True,
    )  # fmt: skip


_KEEPS_LAYOUT = ("add", "mul", "max_pool", "avg_pool", "global_avg_pool", "concat", "sigmoid", "leaky_relu", "relu", "clip")


def shares_layout_with_convolution(job: UnitContext) -> bool:
    """Whether an op follows an integer convolution, with only ops between that keep an image's layout.

    There ONNX Runtime lays images out with their channels last, which decides the order of some sums.
    """
    integer_units = {u.group.output.name: u for u in job.partition.units if u.integer}
    todo, seen = [n for node in job.unit.group.nodes for _, n in slots(node)], set()
    while todo:
        node = todo.pop()
        unit = integer_units.get(node.name)
        if unit is None or node.name in seen:
            continue
        seen.add(node.name)
        if unit.kind == "conv":
            return True
        if unit.kind in _KEEPS_LAYOUT:
            todo += [n for inner in unit.group.nodes for _, n in slots(inner)]
    return False


def sum_shifted(job: UnitContext, arithmetic: SumShifted) -> fx.Node:
    """The node of a `specs.SumShifted` unit.

    Raises:
        EmulationError: scales so far apart that the sum may need more bits.
    """
    # TFLite: both inputs at twice the larger scale, shifted left; the sum is scaled back to the output.
    a, b = both_operands(job)
    ratios = [v.coding.scale / job.output.scale for v in (a, b)]
    if sum(ratios) * 255 >= 2.0 ** (arithmetic.bits - 1) - 128:
        raise _too_far_apart(job, ratios, f"a sum of {arithmetic.bits} bits")
    sign = -1 if job.unit.kind == "sub" else 1
    twice = 2 * max(a.coding.scale, b.coding.scale)
    scales = [a.coding.scale / twice, b.coding.scale / twice, twice / (2.0**arithmetic.left_shift * job.output.scale)]
    pairs = [tuple(int(t) for t in fixed_point.fixed_multiplier(torch.tensor(s, dtype=torch.float64))) for s in scales]
    zeros = (a.coding.zero_point, b.coding.zero_point)
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
        name=job.name,
        result=True,
    )


def sum_scaled(job: UnitContext, arithmetic: SumScaled) -> fx.Node:
    """The node of a `specs.SumScaled` unit.

    Raises:
        EmulationError: scales too far apart.
    """
    # XNNPACK: both multipliers on one shift, such that the larger one has all its bits.
    a, b = both_operands(job)
    ratios = [float(torch.tensor(v.coding.scale) / torch.tensor(job.output.scale)) for v in (a, b)]
    if not all(2**-10 <= r < 2**8 for r in ratios):
        raise _too_far_apart(job, ratios, "ratios in [2^-10, 2^8)")
    shift = arithmetic.bits - math.frexp(max(ratios))[1]
    m = [round(Fraction(r) * Fraction(2) ** shift) for r in ratios]
    m[1] = -m[1] if job.unit.kind == "sub" else m[1]
    zeros = (a.coding.zero_point, b.coding.zero_point)
    return job.emitter.call(
        add_scaled, a.node, b.node, zeros, m, shift, arithmetic.rounding, *job.range(), name=job.name, result=True
    )


def _too_far_apart(job: UnitContext, ratios: list[float], wanted: str) -> EmulationError:
    do = "Calibrate on inputs of the same range, or bind another arithmetic to this unit."
    found = f"inputs whose scales are {ratios} of the output's"
    return EmulationError(where=f"unit {job.unit.path!r}", found=found, wanted=wanted, do=do)


def sum_shift(job: UnitContext, arithmetic: Shift) -> fx.Node:
    """The node of an addition by `specs.Shift`: both terms at the finer scale, exact, then one rounding shift."""
    a, b = both_operands(job)
    scales = torch.tensor([v.coding.scale for v in (a, b)], dtype=torch.float64)
    k = -exponents(scales / job.output.scale, job.unit.path)
    last = int(k.max())
    left = [last - int(v) for v in k]
    zeros = (a.coding.zero_point, b.coding.zero_point)
    return job.emitter.call(
        add_by_shifts, a.node, b.node, zeros, left, last, arithmetic.rounding, *job.range(), name=job.name, result=True
    )
