"""Units as graph nodes: for each arithmetic of the vocabulary, the calls that compute it."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from qfunc.emulation import activations as own_forms
from qfunc.emulation import pooling, resize
from qfunc.emulation.addition import sum_fma, sum_scaled, sum_shift, sum_shifted
from qfunc.emulation.context import UnitContext
from qfunc.emulation.linear import apply_bounds, requantize
from qfunc.emulation.pooling import average, window_sum
from qfunc.errors import EmulationError
from qfunc.numerics.kernels import integer
from qfunc.numerics.kernels import mlas as mlas_real
from qfunc.numerics.kernels import ncnn as ncnn_real
from qfunc.numerics.kernels.pooling import quantize_interior
from qfunc.numerics.kernels.xnnpack import gelu_in_double, hard_swish_by_sixths, logistic_in_double
from qfunc.ops.vocabulary import attribute, slots
from qfunc.specs import (
    AverageCodes,
    AveragePool,
    Bilinear,
    Copy,
    FixedBits,
    FixedPoint,
    FixedPointLanes,
    FloatKernel,
    FloatMultiplier,
    FloatRequantize,
    HardSwish16,
    Shift,
    SoftmaxFixed,
    SoftmaxFloat,
    SoftmaxTable,
    SumFma,
    SumScaled,
    SumShifted,
)
from qfunc.specs.arithmetic.kernel import Arithmetic

_PRODUCTS = ("conv", "conv_transpose", "linear", "matmul", "mul")
_SUMS = ("add", "sub")
_FORMS = {"mlas": mlas_real.FORMS, "ncnn": ncnn_real.FORMS}
_FUNCTIONS = {
    "mlas_logistic": integer.logistic,
    "gelu_erfc": integer.gelu_erfc,
    "xnn_gelu": gelu_in_double,
    "xnn_hardswish": hard_swish_by_sixths,
    "xnn_logistic": logistic_in_double,
}


def write(job: UnitContext) -> fx.Node:
    """The node that computes the unit's output codes.

    Raises:
        EmulationError: the arithmetic does not fit the unit's op.
    """
    kernel = job.unit.kernel
    assert kernel is not None
    kind, arithmetic = job.unit.kind, kernel.arithmetic
    if job.made is None and not isinstance(arithmetic, FloatKernel | FloatRequantize | FloatMultiplier):
        wanted = "FloatKernel, FloatRequantize or FloatMultiplier"
        raise _unfit(job, f"{type(arithmetic).__name__} for an output without qparams", wanted)
    match arithmetic:
        case Copy():
            return _copy(job)
        case SumFma(rounding) if kind == "add":
            return sum_fma(job, rounding)
        case SumShifted() if kind in _SUMS:
            return sum_shifted(job, arithmetic)
        case SumScaled() if kind in _SUMS:
            return sum_scaled(job, arithmetic)
        case SoftmaxTable() if kind == "softmax":
            return _softmax(job)
        case FloatKernel():
            return _interior(job, arithmetic)
        case AveragePool() if kind in ("avg_pool", "adaptive_avg_pool", "global_avg_pool"):
            return average(job, arithmetic)
        case Shift() if kind == "add":
            return sum_shift(job, arithmetic)
        case FloatMultiplier(zero_point="after") if kind == "global_avg_pool":
            x = job.given(slots(job.root)[0][1])
            return job.emitter.call(
                integer.global_average_codes, x.node, x.coding.zero_point, x.coding.scale, job.output.scale, *job.range(),
                arithmetic.rounding, attribute(job.root, "keepdim"), name=job.name, result=True,
            )  # fmt: skip
        case FloatMultiplier() | FixedPoint() | FixedPointLanes() | Shift() | FloatRequantize() if kind in _PRODUCTS:
            return requantize(job, arithmetic)
    own = _own_form(job, kind, arithmetic)
    if own is not None:
        return own
    raise _unfit(job, f"{type(arithmetic).__name__} for an op of kind {kind!r}", "an arithmetic that this kind of op can have")


def _unfit(job: UnitContext, found: str, wanted: str) -> EmulationError:
    do = "Bind another arithmetic in the target's kernels."
    return EmulationError(where=f"unit {job.unit.path!r}", found=found, wanted=wanted, do=do)


def _own_form(job: UnitContext, kind: str, arithmetic: Arithmetic) -> fx.Node | None:
    match arithmetic:
        case AverageCodes() if kind in ("avg_pool", "adaptive_avg_pool"):
            return pooling.average_pool_node(job, arithmetic)
        case FixedPoint() if kind in ("leaky_relu", "prelu"):
            return own_forms.slopes(job, arithmetic)
        case FloatMultiplier(zero_point="after") if kind == "prelu":
            return own_forms.slopes(job, arithmetic)
        case FixedBits() if kind == "leaky_relu":
            return own_forms.bits(job, arithmetic)
        case FixedPoint() | FloatMultiplier() if kind in ("mean", "global_avg_pool"):
            return pooling.mean(job, arithmetic)
        case HardSwish16() if kind == "hardswish":
            return own_forms.hard_swish(job)
        case SoftmaxFloat() if kind == "softmax":
            return own_forms.softmax(job)
        case SoftmaxFixed() if kind == "softmax":
            return own_forms.softmax_fixed(job)
        case Bilinear() if kind == "resize":
            return resize.bilinear(job, arithmetic)
    return None


def _copy(job: UnitContext) -> fx.Node:
    codes = job.given(slots(job.root)[0][1]).node
    source = slots(job.root)[0][1]
    arguments = fx.map_arg(job.root.args, lambda n: codes if n is source else job.inputs[n.name].node)
    return job.emitter.call(job.root.target, *arguments, name=job.name, result=True)  # type: ignore[arg-type]


def _softmax(job: UnitContext) -> fx.Node:
    x = job.given(slots(job.root)[0][1])
    zero, _, high = job.range()
    return job.emitter.call(
        integer.softmax_codes,
        x.node,
        attribute(job.root, "dim"),
        x.coding.scale,
        job.output.scale,
        zero,
        high,
        name=job.name,
        result=True,
    )


def _interior(job: UnitContext, arithmetic: FloatKernel) -> fx.Node:
    sources = {n.name: job.real(n, job.root) for n in job.root.all_input_nodes}
    dtype = getattr(torch, arithmetic.dtype)
    if dtype != torch.float32:
        sources = {k: job.emitter.call(torch.Tensor.to, v, dtype, name=f"{k}_wide") for k, v in sources.items()}
    if arithmetic.function in ("window_sum", "xnn_average"):
        return window_sum(job, arithmetic)
    own: Any = _FORMS.get(arithmetic.function or "", {}).get(job.unit.kind)
    function: Any = own or _FUNCTIONS.get(arithmetic.function or "") or job.root.target
    arguments = fx.map_arg(job.root.args, lambda n: sources[n.name])
    if job.made is None:
        return apply_bounds(job, job.emitter.call(function, *arguments, name=f"{job.name}_bare"))
    real = job.emitter.call(function, *arguments, name=f"{job.name}_real")
    zero, low, high = job.range()
    return job.emitter.call(
        quantize_interior, real, job.output.scale, zero, low, high, arithmetic.rounding, arithmetic.division,
        arithmetic.zero_point,
        name=job.name, result=True,
    )  # fmt: skip


__all__ = ["write"]
