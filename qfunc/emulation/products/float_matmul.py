"""Emulate products of real tensors."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from qfunc.emulation.context import UnitContext, apply_bounds
from qfunc.errors import EmulationError
from qfunc.numerics.sums.mlas_matmul import mlas_linear, mlas_matmul
from qfunc.ops.node import attribute
from qfunc.placement.matmul_form import matmul_form
from qfunc.specs import FloatMatmul

__all__ = ["float_linear", "float_matmul"]


def float_matmul(job: UnitContext, arithmetic: FloatMatmul) -> fx.Node:
    """Return the node of a matmul in float32, and of the number that is fused with it.

    Raises:
        EmulationError: a kernel that takes codes.
    """
    _of_reals(job, arithmetic)
    form = matmul_form(job.unit.group, job.partition.context)
    assert form is not None  # the kernel would not compute it
    a, b = (job.real(attribute(job.root, name), job.root) for name in ("input", "other"))
    factor: Any = fx.map_arg(form.factor, lambda n: job.inputs[n.name].node)
    if form.by_width:
        width = job.emitter.call(torch.Tensor.size, a, -1, name=f"{job.name}_width")
        factor = job.emitter.call(operator.pow, width, -0.5, name=f"{job.name}_factor")
    if form.divides:
        factor = job.emitter.call(_reciprocal, factor, name=f"{job.name}_factor")
    return job.emitter.call(
        mlas_matmul, a, b, form.transposed, factor, arithmetic.depth, arithmetic.threads, name=job.name, result=True
    )


def float_linear(job: UnitContext, arithmetic: FloatMatmul) -> fx.Node:
    """Return the node of a linear layer in float32, whose weight is dequantized.

    Raises:
        EmulationError: a kernel that takes codes.
    """
    _of_reals(job, arithmetic)
    x, w = (job.real(attribute(job.root, name), job.root) for name in ("input", "weight"))
    bias = attribute(job.root, "bias")
    added = None if bias is None else job.real(bias, job.root)
    y = job.emitter.call(mlas_linear, x, w, added, arithmetic.depth, arithmetic.threads, name=f"{job.name}_bare")
    return apply_bounds(job, y)


def _of_reals(job: UnitContext, arithmetic: FloatMatmul) -> None:
    if job.output_encoding is not None:
        found, wanted = f"{arithmetic!r} for a {job.unit.kind} of codes", "a kernel that takes reals"
        do = 'Add formats=(("input", (FLOAT32,)), ("output", (FLOAT32,))) to its Kernel.'
        raise EmulationError(where=f"unit {job.unit.path!r}", found=found, wanted=wanted, do=do)


def _reciprocal(number: float) -> float:
    return float(1 / torch.tensor(float(number), dtype=torch.float32))
