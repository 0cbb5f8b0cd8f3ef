"""Emulate average pools, means and bilinear resizing of codes."""

from __future__ import annotations

import math

from torch import fx

from qfunc.emulation.context import UnitContext, input_codes, rank_of
from qfunc.errors import EmulationError
from qfunc.numerics.kernels import activations as fixed_curves
from qfunc.numerics.kernels.pooling import adaptive_pool_codes, average_codes, average_pool_codes, average_to
from qfunc.numerics.kernels.resize import resize_codes
from qfunc.specs import AverageCodes, AveragePool, Bilinear, FloatKernel

__all__ = ["WINDOWS", "average", "average_pool_node", "bilinear", "window_sum"]

WINDOWS = frozenset(
    (function, kind) for function in ("window_sum", "xnnpack") for kind in ("avg_pool", "adaptive_avg_pool", "global_avg_pool")
)
"""(`FloatKernel.function`, kind) of pools that a library sums in its own order."""


def window_sum(job: UnitContext, arithmetic: FloatKernel) -> fx.Node:
    """Return the node of an average pool in float, summed in window order, or in the order of XNNPACK."""
    x, (zero, low, high) = input_codes(job), job.range()
    arguments = [arithmetic.rounding, arithmetic.division, arithmetic.zero_point, arithmetic.function == "xnnpack"]
    if job.unit.kind == "adaptive_avg_pool":
        return job.emitter.call(
            adaptive_pool_codes, x.node, x.encoding.scale, x.encoding.zero_point, job.per_axis("output_size"),
            job.output.scale, zero, low, high, *arguments, name=job.name, result=True,
        )  # fmt: skip
    return job.emitter.call(
        average_pool_codes, x.node, x.encoding.scale, x.encoding.zero_point,
        *(job.per_axis(name) for name in ("kernel_size", "stride", "padding")),
        job.argument("ceil_mode"), job.argument("count_include_pad"), job.output.scale, zero, low, high,
        *arguments, name=job.name, result=True,
    )  # fmt: skip


def average(job: UnitContext, arithmetic: AveragePool) -> fx.Node:
    """Return the node of a `specs.AveragePool` unit: a pool, or an average over all positions.

    Raises:
        EmulationError: scales whose ratio is no power of two.
    """
    x = input_codes(job)
    ratio = x.encoding.scale / job.output.scale
    if math.frexp(ratio)[0] != 0.5:
        raise EmulationError(
            where=f"unit {job.unit.path!r}", found=f"scales {x.encoding.scale!r} and {job.output.scale!r}",
            wanted="equal ones, or powers of two", do="Add SameQParams() to the kernel, or tie the scales.",
        )  # fmt: skip
    rank, pool = rank_of(job.root), None
    if job.unit.kind == "avg_pool":
        pool = [job.per_axis(name) for name in ("kernel_size", "stride", "padding")]
    elif job.unit.kind == "adaptive_avg_pool" and job.per_axis("output_size") != [1] * rank:
        do = "Let the kernel select only pools to the size 1."
        raise EmulationError(
            where=f"unit {job.unit.path!r}", found="an adaptive pool to several windows", wanted="a pool to the size 1", do=do
        )
    keep = job.argument("keepdim") if job.unit.kind == "global_avg_pool" else True
    table = [[list(kernel), k, n] for kernel, k, n in arithmetic.reciprocals]
    return job.emitter.call(
        average_codes, x.node, x.encoding.zero_point, rank, pool, keep, ratio, table, arithmetic.reciprocal_bits,
        arithmetic.rounding, *job.range(), name=job.name, result=True,
    )  # fmt: skip


def average_pool_node(job: UnitContext, arithmetic: AverageCodes) -> fx.Node:
    """Return the node of an average pool of codes.

    Raises:
        EmulationError: a pool over three axes.
    """
    x, rank = input_codes(job), rank_of(job.root)
    if rank > 2:
        do = "Reshape the input, so that the pool slides over two axes."
        raise EmulationError(where=f"unit {job.unit.path!r}", found="a pool over 3 axes", wanted="one or two", do=do)
    if job.unit.kind == "adaptive_avg_pool":
        size = job.per_axis("output_size")
        return job.emitter.call(
            average_to, x.node, size, x.encoding.zero_point, arithmetic.rounding, *job.range()[1:], arithmetic.centred,
            name=job.name, result=True,
        )  # fmt: skip
    kernel, stride, padding = (job.per_axis(name) for name in ("kernel_size", "stride", "padding"))
    return job.emitter.call(
        fixed_curves.average_inside, x.node, kernel, stride, padding, job.argument("ceil_mode"),
        job.argument("count_include_pad"), x.encoding.zero_point, arithmetic.rounding, *job.range()[1:],
        arithmetic.centred, name=job.name, result=True,
    )  # fmt: skip


def bilinear(job: UnitContext, arithmetic: Bilinear) -> fx.Node:
    """Return the node of a `specs.Bilinear` unit."""
    x = input_codes(job)
    size_or_factor = [job.argument(n) for n in ("size", "scale_factor")]
    return job.emitter.call(
        resize_codes, x.node, *size_or_factor, bool(job.argument("align_corners")), arithmetic.positions,
        arithmetic.bits, job.unit.path, name=job.name, result=True,
    )  # fmt: skip
