"""Emulate activations and norms on codes: leaky_relu, prelu, hardswish, glu, softmax, norms of layers, groups and instances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from qfunc.emulation.context import UnitContext, input_codes
from qfunc.errors import EmulationError
from qfunc.graph.constants import read_attr
from qfunc.numerics.kernels.fixed_rows import LONGEST, norm_fixed
from qfunc.ops.node import attribute
from qfunc.specs import (
    NormFixed,
)

__all__ = ["norm"]


def norm(job: UnitContext, _: NormFixed) -> fx.Node:
    """Return the node of a `specs.NormFixed` unit.

    Raises:
        EmulationError: an instance norm that keeps running statistics, or parameters that are computed.
    """
    x, root = input_codes(job), job.root
    settings = _of_module(job) if root.op == "call_module" else _of_function(job)
    weight, bias, eps, over = settings
    arguments = [job.emitter.constant(t, f"{job.unit.path}.{n}") for n, t in (("factors", weight), ("offsets", bias))]
    return job.emitter.call(
        _norm, x.node, x.encoding.zero_point, over, job.unit.kind != "rms_norm", x.encoding.scale, job.output.scale,
        *arguments, eps, *job.described().unit.code_range, job.unit.path, name=job.name, result=True,
    )  # fmt: skip


def _norm(
    codes: Tensor, zero_in: int, over: Sequence[int] | int, centred: bool, scale_in: float, scale_out: float,
    weight: Tensor, bias: Tensor, eps: float, zero: int, low: int, high: int, where: str,
) -> Tensor:  # fmt: skip
    # `over` is the lengths of the last axes, which one statistic has, or the number of groups, 0 for one an instance.
    if not isinstance(over, int):
        shape = [*codes.shape[: codes.ndim - len(over)], math.prod(over)]
    else:
        groups = over or codes.shape[1]
        shape = [codes.shape[0], groups, math.prod(codes.shape[1:]) // groups]
        weight, bias = (t.reshape(-1, *[1] * (codes.ndim - 2)) for t in (weight, bias))
    if shape[-1] > LONGEST:
        do = "Keep it out of the deployed model, or normalize fewer values."
        raise EmulationError(where=f"unit {where!r}", found=f"a norm of {shape[-1]} codes", wanted=f"at most {LONGEST}", do=do)
    return norm_fixed(codes, zero_in, shape, centred, scale_in, scale_out, weight, bias, eps, zero, low, high)


def _of_function(job: UnitContext) -> tuple[Tensor, Tensor, float, Any]:
    root, kind = job.root, job.unit.kind
    eps = attribute(root, "eps")
    weight = _constant(job, attribute(root, "weight"), 1.0)
    bias = torch.zeros(1) if kind == "rms_norm" else _constant(job, attribute(root, "bias"), 0.0)
    if kind in ("layer_norm", "rms_norm"):
        return weight, bias, torch.finfo(torch.float32).eps if eps is None else eps, job.argument("normalized_shape")
    if kind == "instance_norm" and not attribute(root, "use_input_stats"):
        raise _running(job)
    return weight, bias, eps, attribute(root, "num_groups") if kind == "group_norm" else 0


def _of_module(job: UnitContext) -> tuple[Tensor, Tensor, float, int]:
    module: Any = job.partition.network.get_submodule(str(job.root.target))
    if not isinstance(module, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d) or module.running_mean is not None:
        raise _running(job)
    weight = torch.ones(1) if module.weight is None else module.weight.detach().float()
    return weight, torch.zeros(1) if module.bias is None else module.bias.detach().float(), module.eps, 0


def _running(job: UnitContext) -> EmulationError:
    found, do = "running statistics", "Use nn.BatchNorm, or track_running_stats=False."
    return EmulationError(where=f"unit {job.unit.path!r}", found=found, wanted="statistics of the input", do=do)


def _constant(job: UnitContext, value: Any, default: float) -> Tensor:
    if value is None:
        return torch.full((1,), default)
    if not isinstance(value, fx.Node) or value.op != "get_attr":
        found, do = "parameters that the model computes", "Make them parameters or buffers of the model."
        raise EmulationError(where=f"unit {job.unit.path!r}", found=found, wanted="constants", do=do)
    return read_attr(job.partition.network, value).detach().float()
