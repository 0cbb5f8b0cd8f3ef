"""Emulate requantization in two stages: a product with an addend, then a table of line segments."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from qfunc.emulation.context import UnitContext
from qfunc.errors import EmulationError
from qfunc.numerics.stages import largest_sums, requantize_stages, stage_numbers
from qfunc.placement.products import range_of_unit
from qfunc.specs import Stages


def requantize_in_stages(job: UnitContext, stages: Stages, acc: fx.Node, product: Tensor, bias: Tensor | None) -> fx.Node:
    """Return the node of a unit with a constant weight.

    Args:
        job: The unit.
        stages: Its arithmetic.
        acc: The node of its accumulator.
        product: s_x s_w in float64: one number, or one for each channel, shaped for the accumulator.
        bias: The real bias, shaped for the accumulator, or None.
    Raises:
        EmulationError: products of two activations, or sums that do not fit the widths of the stages.
    """
    sums, path = range_of_unit(job.partition, job.unit), job.unit.path
    if sums is None or sums.per_product:
        do = "Bind another arithmetic in the target's kernels."
        raise EmulationError(where=f"unit {path!r}", found=f"{stages!r} without weights", wanted="constant weights", do=do)
    scale, (zero, low, high) = torch.tensor(job.output.scale, dtype=torch.float64), job.range()
    largest = largest_sums(sums.low, sums.high)
    ratio, offset = product / scale, torch.zeros((), dtype=torch.float64) if bias is None else bias.double() / scale
    ends = job.output.format.qmin, job.output.format.qmax
    numbers = stage_numbers(stages, ratio, offset, largest, (zero, low, high), ends)
    if numbers is None:
        raise EmulationError(
            where=f"unit {path!r}",
            found=f"sums up to {float((largest * ratio.flatten()).max()):.4g} steps of the output and a bias of "
            f"{float(offset.abs().max()):.4g}",
            wanted=f"at most 2^{stages.first.value - 1} steps, and a multiplier of {stages.first.bits} bits",
            do="Calibrate with batches in which the output has its full range.",
        )
    tensors = zip(numbers[:3], (ratio, ratio, offset), ("multiplier", "shift", "addend"), strict=True)
    m, e, b = (job.emitter.constant(t.reshape(like.shape), f"{path}.{name}") for t, like, name in tensors)
    roundings = [stages.first.rounding, stages.then.rounding]
    segments = [list(s) for s in numbers.segments]
    return job.emitter.call(requantize_stages, acc, m, e, b, segments, roundings, low, high, name=job.name, result=True)


__all__ = ["requantize_in_stages"]
