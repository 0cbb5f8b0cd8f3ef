"""Emulate activations on codes: leaky_relu, prelu, hardswish, softmax."""

from __future__ import annotations

import operator

import torch
from torch import fx

from qfunc.emulation.context import UnitContext, input_codes
from qfunc.numerics.kernels import activations as fixed_curves
from qfunc.numerics.kernels import fixed_softmax, integer
from qfunc.numerics.kernels.activations import prelu_codes, scale_channels
from qfunc.numerics.kernels.fixed_point import fixed_multiplier
from qfunc.ops.node import attribute, slots
from qfunc.specs import FixedBits, FixedPoint, FloatMultiplier, GluTable, HardSwish16, SoftmaxFixed, SoftmaxFloat

_LARGEST_MULTIPLIER = 2.0**7
"""The largest multiplier of a leaky_relu that LiteRT's delegate takes."""

__all__ = ["bits", "glu", "hard_swish", "slopes", "softmax", "softmax_fixed"]


def slopes(job: UnitContext, arithmetic: FixedPoint | FloatMultiplier) -> fx.Node:
    """Return the node of a leaky_relu or prelu in fixed point, or of a prelu by two float32 multipliers."""
    x = input_codes(job)
    centred = below = job.emitter.call(operator.sub, x.node, x.encoding.zero_point, name=f"{job.name}_centred")
    scale = torch.tensor(x.encoding.scale, dtype=torch.float64) / job.output.scale
    if job.unit.kind == "leaky_relu":
        slope = scale * float(torch.tensor(float(attribute(job.root, "negative_slope"))))
    else:
        weight = dict(slots(job.root))["weight"]
        encoding = job.partition.encoding(weight, job.root)
        assert encoding is not None
        offsets = (job.constant_codes(weight, encoding) - encoding.qparams.zero_point).float()
        slope_codes = job.emitter.constant(offsets, str(weight.target))
        below = job.emitter.call(scale_channels, centred, slope_codes, name=f"{job.name}_sloped")
        slope = scale * encoding.qparams.scale.double().reshape(())
        if isinstance(arithmetic, FloatMultiplier):
            s_x, s_y = torch.tensor(x.encoding.scale), torch.tensor(job.output.scale)
            each = [float(s_x / s_y), float(s_x * encoding.qparams.scale.float().reshape(()) / s_y)]
            return job.emitter.call(
                prelu_codes, centred, below, each, *job.range(), arithmetic.rounding, name=job.name, result=True
            )
    assert isinstance(arithmetic, FixedPoint)
    pairs = [fixed_multiplier(s, arithmetic.bits) for s in (scale, slope)]
    m, e = ([job.emitter.constant(p[i], f"{job.unit.path}.{n}_{k}") for k, p in enumerate(pairs)]
            for i, n in enumerate(("multiplier", "shift")))  # fmt: skip
    return job.emitter.call(
        fixed_curves.two_slopes, centred, below, m, e, list(arithmetic.steps), *job.range(), name=job.name, result=True
    )


def bits(job: UnitContext, arithmetic: FixedBits) -> fx.Node:
    """Return the node of a leaky_relu by integers with a fixed number of fractional bits."""
    x = input_codes(job)
    scale = torch.tensor(x.encoding.scale) / torch.tensor(job.output.scale)
    scales = (scale, scale * float(attribute(job.root, "negative_slope")))
    least = arithmetic.least
    if least is not None and not all(least <= abs(float(s)) <= _LARGEST_MULTIPLIER for s in scales):
        return slopes(job, FixedPoint())
    centred = job.emitter.call(operator.sub, x.node, x.encoding.zero_point, name=f"{job.name}_centred")
    m = [int(torch.round(s * float(1 << arithmetic.bits))) for s in scales]
    return job.emitter.call(
        fixed_curves.fixed_bits, centred, m, arithmetic.bits, arithmetic.rounding, *job.range(), name=job.name, result=True
    )


def hard_swish(job: UnitContext, _: HardSwish16) -> fx.Node:
    """Return the node of a `specs.HardSwish16` unit."""
    x = input_codes(job)
    return job.emitter.call(
        fixed_curves.hard_swish16, x.node, x.encoding.zero_point, x.encoding.scale, job.output.scale, *job.range(),
        name=job.name, result=True,
    )  # fmt: skip


def glu(job: UnitContext, _: GluTable) -> fx.Node:
    """Return the node of a `specs.GluTable` unit."""
    x = input_codes(job)
    return job.emitter.call(
        fixed_curves.glu_codes, x.node, job.argument("dim"), x.encoding.scale, x.encoding.zero_point, job.output.scale,
        *job.range(), name=job.name, result=True,
    )  # fmt: skip


def softmax(job: UnitContext, _: SoftmaxFloat) -> fx.Node:
    """Return the node of a `specs.SoftmaxFloat` unit."""
    x = input_codes(job)
    return job.emitter.call(
        integer.softmax_float, x.node, job.argument("dim"), x.encoding.scale, job.output.scale, *job.range(),
        name=job.name, result=True,
    )  # fmt: skip


def softmax_fixed(job: UnitContext, _: SoftmaxFixed) -> fx.Node:
    """Return the node of a `specs.SoftmaxFixed` unit."""
    x = input_codes(job)
    return job.emitter.call(
        fixed_softmax.softmax_fixed, x.node, job.argument("dim"), x.encoding.scale, *job.range()[1:],
        name=job.name, result=True,
    )  # fmt: skip
