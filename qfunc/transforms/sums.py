"""Additions of two code tensors, by each arithmetic that hardware has for them."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor, fx

from qfunc.errors import EmulationError
from qfunc.graph.vocabulary import slots
from qfunc.numerics import fixed_point, integer
from qfunc.numerics.lanes import in_runs
from qfunc.specs import Shift, SumScaled, SumShifted
from qfunc.transforms.job import Job, exponents, two


def sum_fma(job: Job, rounding: str) -> fx.Node:
    """The node of a `specs.SumFma` unit."""
    (a, b), (zero, low, high) = two(job), job.range()
    return job.emitter.call(
        integer.add_codes, a.node, a.coding.scale, a.coding.zero_point, b.node, b.coding.scale, b.coding.zero_point,
        job.output.scale, zero, low, high, rounding, near_convolution(job), name=job.name, result=True,
    )  # fmt: skip


_KEEPS_LAYOUT = ("add", "mul", "max_pool", "avg_pool", "global_avg_pool", "concat", "sigmoid", "leaky_relu", "relu", "clip")


def near_convolution(job: Job) -> bool:
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


def sum_shifted(job: Job, arithmetic: SumShifted) -> fx.Node:
    """The node of a `specs.SumShifted` unit.

    Raises:
        EmulationError: scales so far apart that the sum may need more bits.
    """
    # TFLite: both inputs at twice the larger scale, shifted left; the sum is scaled back to the output.
    a, b = two(job)
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
        near_convolution(job),
        name=job.name,
        result=True,
    )


def add_shifted(
    a: Tensor, b: Tensor, zeros: tuple[int, int], pairs: list[tuple[int, int]], left_shift: int, steps: list[str],
    zero_point: int, low: int, high: int, sign: int = 1, lanes: int | None = None, channels_last: bool = False,
) -> Tensor:  # fmt: skip
    """Codes of a + sign * b in fixed point: see `specs.SumShifted`; the runtime has them with `channels_last`, or as here."""
    m = [(torch.tensor(p), torch.tensor(e)) for p, e in pairs]
    terms = [
        fixed_point.scale_fixed((t - z).long() << left_shift, *q, steps) for t, z, q in zip((a, b), zeros, m, strict=False)
    ]
    for i, (t, z, (multiplier, e)) in enumerate(zip((a, b), zeros, pairs, strict=False)):
        if lanes is not None and 31 < e <= 31 + left_shift:
            once = (t - z).long() << left_shift - (e - 31)
            once = fixed_point.scale_fixed(once, torch.tensor(multiplier), torch.tensor(31), steps)
            terms[i] = torch.where(_in_runs(a, b, lanes, channels_last), once, terms[i])
    return (fixed_point.scale_fixed(terms[0] + sign * terms[1], *m[2], steps) + zero_point).clamp(low, high).float()


def _in_runs(a: Tensor, b: Tensor, lanes: int, channels_last: bool) -> Tensor:
    if channels_last and a.ndim == b.ndim == 4:
        last = [t.permute(0, 2, 3, 1).shape for t in (a, b)]
        return in_runs(last[0], last[1], lanes).permute(0, 3, 1, 2)
    return in_runs(a.shape, b.shape, lanes)


def sum_scaled(job: Job, arithmetic: SumScaled) -> fx.Node:
    """The node of a `specs.SumScaled` unit.

    Raises:
        EmulationError: scales too far apart.
    """
    # XNNPACK: both multipliers on one shift, such that the larger one has all its bits.
    a, b = two(job)
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


def _too_far_apart(job: Job, ratios: list[float], wanted: str) -> EmulationError:
    do = "Calibrate on inputs of the same range, or bind another arithmetic to this unit."
    found = f"inputs whose scales are {ratios} of the output's"
    return EmulationError(where=f"unit {job.unit.path!r}", found=found, wanted=wanted, do=do)


def add_scaled(
    a: Tensor, b: Tensor, zeros: tuple[int, int], m: list[int], shift: int, rounding: str, zero_point: int, low: int, high: int
) -> Tensor:
    """Codes of a + b by two integer multipliers and one shift: see `specs.SumScaled`."""
    total = (a - zeros[0]).long() * m[0] + (b - zeros[1]).long() * m[1]
    left = total << max(-shift, 0)
    return (fixed_point.shift_right(left, torch.tensor(max(shift, 0)), rounding) + zero_point).clamp(low, high).float()


def sum_shift(job: Job, arithmetic: Shift) -> fx.Node:
    """The node of an addition by `specs.Shift`: both terms at the finer scale, exact, then one rounding shift."""
    a, b = two(job)
    scales = torch.tensor([v.coding.scale for v in (a, b)], dtype=torch.float64)
    k = -exponents(scales / job.output.scale, job.unit.path)
    last = int(k.max())
    left = [last - int(v) for v in k]
    zeros = (a.coding.zero_point, b.coding.zero_point)
    return job.emitter.call(
        add_by_shifts, a.node, b.node, zeros, left, last, arithmetic.rounding, *job.range(), name=job.name, result=True
    )


def add_by_shifts(
    a: Tensor, b: Tensor, zeros: tuple[int, int], left: list[int], shift: int, rounding: str, zero_point: int, low: int,
    high: int,
) -> Tensor:  # fmt: skip
    """clamp(R((a * 2^left_a + b * 2^left_b) * 2^-shift) + z): see `specs.Shift`; a negative shift is to the left."""
    terms = [(t - z).long() << s for t, z, s in zip((a, b), zeros, left, strict=True)]
    total = (terms[0] + terms[1]) << max(-shift, 0)
    return (fixed_point.shift_right(total, torch.tensor(max(shift, 0)), rounding) + zero_point).clamp(low, high).float()
