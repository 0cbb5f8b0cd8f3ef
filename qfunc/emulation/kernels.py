"""The table of emulation kernels: (arithmetic, kind of op) -> the function that writes the nodes of a unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from qfunc.emulation import activations, pooling
from qfunc.emulation.addition import scaled_multipliers, sum_scaled
from qfunc.emulation.computation import computed
from qfunc.emulation.context import UnitContext, apply_bounds, input_codes
from qfunc.emulation.products.cached_attention import append, attend
from qfunc.emulation.products.dynamic import dynamic_product
from qfunc.emulation.products.experts import stacked_experts
from qfunc.emulation.products.float_matmul import float_linear, float_matmul
from qfunc.errors import EmulationError
from qfunc.numerics.kernels import integer
from qfunc.numerics.kernels.libraries import LIBRARIES
from qfunc.numerics.kernels.pooling import quantize_interior
from qfunc.numerics.sums.dynamic import flushed
from qfunc.ops.node import slots
from qfunc.ops.sizes import is_number
from qfunc.specs import (
    AppendCodes,
    AverageCodes,
    AveragePool,
    Bilinear,
    CachedAttention,
    Copy,
    DynamicProduct,
    ExpertSums,
    FloatKernel,
    FloatMatmul,
    GluTable,
    HardSwish16,
    NormFixed,
    SoftmaxFixed,
    SoftmaxFloat,
    SoftmaxTable,
    SoftmaxTable16,
    SumScaled,
)
from qfunc.specs.protocols import Arithmetic


def _unfit(job: UnitContext, found: str, wanted: str) -> EmulationError:
    do = "Bind another arithmetic in the target's kernels."
    return EmulationError(where=f"unit {job.unit.path!r}", found=found, wanted=wanted, do=do)


def _copy(job: UnitContext, _: Copy) -> fx.Node:
    codes = input_codes(job).node
    source = slots(job.root)[0][1]
    return job.emitter.copy_op(job.root, lambda n: codes if n is source else job.inputs[n.name].node, job.name, result=True)


def _softmax_by_table(job: UnitContext, arithmetic: SoftmaxTable) -> fx.Node:
    x = input_codes(job)
    zero, _, high = job.range()
    return job.emitter.call(
        integer.softmax_codes,
        x.node,
        job.argument("dim"),
        x.encoding.scale,
        job.output.scale,
        zero,
        high,
        arithmetic.rounding,
        arithmetic.saturates,
        name=job.name,
        result=True,
    )


def _real_value(job: UnitContext, arithmetic: FloatKernel, sources: dict[str, fx.Node], name: str) -> fx.Node:
    # The op in float: PyTorch's own, or the form of a library.
    if arithmetic.function is None:
        return job.emitter.copy_op(job.root, lambda n: sources[n.name], name)
    arguments = fx.map_arg(job.root.args, lambda n: sources[n.name])
    return job.emitter.call(_function(job, arithmetic.function), *arguments, name=name)


def _normal(x: Tensor) -> Tensor:
    # A tensor without subnormal numbers.
    return flushed(x) if x.is_floating_point() else x


def _function(job: UnitContext, library: str) -> Any:
    forms = LIBRARIES.get(library, {})
    if job.unit.kind not in forms:
        computed = {*forms, *(kind for name, kind in pooling.WINDOWS if name == library)}
        wanted = f"one of the kinds that it computes: {', '.join(sorted(computed))}"
        raise _unfit(job, f"FloatKernel(function={library!r}) for an op of kind {job.unit.kind!r}", wanted)
    return forms[job.unit.kind]


def _in_float(job: UnitContext, arithmetic: FloatKernel) -> fx.Node:
    if (arithmetic.function, job.unit.kind) in pooling.WINDOWS:
        return pooling.window_sum(job, arithmetic)
    sources = {n.name: (job.wide if arithmetic.wide else job.real)(n, job.root) for n in job.root.all_input_nodes}
    dtype = getattr(torch, arithmetic.dtype)
    if not arithmetic.denormals:
        reals = {n.name for n in job.root.all_input_nodes if not is_number(n)}
        sources |= {k: job.emitter.call(_normal, sources[k], name=f"{k}_normal") for k in sources if k in reals}
    if dtype != torch.float32 and not arithmetic.wide:
        tensors = {n.name for n in job.root.all_input_nodes if not is_number(n)}
        sources |= {k: job.emitter.call(torch.Tensor.to, sources[k], dtype, name=f"{k}_wide") for k in sources if k in tensors}
    if job.output_encoding is None:
        bare = apply_bounds(job, _real_value(job, arithmetic, sources, f"{job.name}_bare"))
        return bare if arithmetic.denormals else job.emitter.call(_normal, bare, name=job.name, result=True)
    real = _real_value(job, arithmetic, sources, f"{job.name}_real")
    if not arithmetic.denormals:
        real = job.emitter.call(_normal, real, name=f"{job.name}_normal")
    zero, low, high = job.range()
    if arithmetic.wide:
        return job.emitter.call(
            integer.quantize_wide, real, job.output.scale, zero, low, high, arithmetic.rounding, arithmetic.division,
            arithmetic.zero_point, name=job.name, result=True,
        )  # fmt: skip
    return job.emitter.call(
        quantize_interior, real, job.output.scale, zero, low, high, arithmetic.rounding, arithmetic.division,
        arithmetic.zero_point, arithmetic.fma,
        name=job.name, result=True,
    )  # fmt: skip


def _sum_scaled_or_float(job: UnitContext, arithmetic: SumScaled) -> fx.Node:
    if arithmetic.outside is not None and scaled_multipliers(job, arithmetic) is None:
        return _in_float(job, arithmetic.outside)
    return sum_scaled(job, arithmetic)


Writer = Callable[[UnitContext, Any], fx.Node]

ANY_KIND: dict[type, Writer] = {Copy: _copy, FloatKernel: _in_float}
"""Arithmetic of every kind of op -> writer."""

KERNELS: dict[tuple[type, str], Writer] = {
    (DynamicProduct, "linear"): dynamic_product,
    (DynamicProduct, "matmul"): dynamic_product,
    (FloatMatmul, "matmul"): float_matmul,
    (FloatMatmul, "linear"): float_linear,
    (AppendCodes, "index_put"): append,
    (CachedAttention, "cached_attention"): attend,
    (ExpertSums, "linear"): stacked_experts,
    (SumScaled, "add"): _sum_scaled_or_float,
    (SumScaled, "sub"): _sum_scaled_or_float,
    (AveragePool, "avg_pool"): pooling.average,
    (AveragePool, "adaptive_avg_pool"): pooling.average,
    (AveragePool, "global_avg_pool"): pooling.average,
    (AverageCodes, "avg_pool"): pooling.average_pool_node,
    (AverageCodes, "adaptive_avg_pool"): pooling.average_pool_node,
    (GluTable, "glu"): activations.glu,
    (HardSwish16, "hardswish"): activations.hard_swish,
    (SoftmaxTable, "softmax"): _softmax_by_table,
    (SoftmaxFloat, "softmax"): activations.softmax,
    (SoftmaxTable16, "softmax"): activations.softmax,
    (SoftmaxFixed, "softmax"): activations.softmax_fixed,
    (SoftmaxFixed, "masked_softmax"): activations.masked_softmax,
    (Bilinear, "resize"): pooling.bilinear,
    **dict.fromkeys(
        ((NormFixed, kind) for kind in ("layer_norm", "group_norm", "instance_norm", "rms_norm")), activations.norm
    ),
}
"""(arithmetic, kind of op) -> writer."""


_TO_REALS = FloatKernel | FloatMatmul | CachedAttention | ExpertSums | DynamicProduct


def write(job: UnitContext) -> fx.Node:
    """Return the node that computes the unit's output codes.

    Raises:
        EmulationError: the arithmetic does not fit the unit's op.
    """
    kernel = job.unit.kernel
    assert kernel is not None
    kind, arithmetic = job.unit.kind, kernel.arithmetic
    if isinstance(arithmetic, Arithmetic):
        return computed(job, kernel, arithmetic)
    if job.output_encoding is None and not isinstance(arithmetic, _TO_REALS):
        wanted = "FloatKernel, FloatMatmul, CachedAttention, ExpertSums or DynamicProduct"
        raise _unfit(job, f"{type(arithmetic).__name__} for an output without qparams", wanted)
    writer = ANY_KIND.get(type(arithmetic)) or KERNELS.get((type(arithmetic), kind))
    if writer is None:
        fitting = sorted(t.__name__ for t in (*ANY_KIND, *(t for t, k in KERNELS if k == kind)))
        raise _unfit(job, f"{type(arithmetic).__name__} for an op of kind {kind!r}", f"one of {', '.join(fitting)}")
    return writer(job, arithmetic)


__all__ = ["write"]
