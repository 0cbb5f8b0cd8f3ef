"""Norms of layers, groups and instances on codes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from attrs import frozen
from torch import Tensor, nn

from qfunc.arithmetic.computation import Computation, Constant
from qfunc.arithmetic.unit import UnitSpec
from qfunc.errors import EmulationError
from qfunc.numerics.kernels.fixed_rows import LONGEST, norm_fixed
from qfunc.specs._values import readable

_KINDS = ("layer_norm", "group_norm", "instance_norm", "rms_norm")


@readable
@frozen
class NormFixed:
    """A layer, group, instance or RMS norm in int32: y = R(x̂ w + b) + z, x̂ = c / sqrt(A + E), for the N codes of a statistic.

    c = x - round(mean(x)) and r = sum(c); an RMS norm has c = x and r = 0.  A + E = sum(c^2) - r^2 / N + N eps / s_x^2, with as
    many fractional bits as 31 bits leave.  Its inverse root is read from a table by 8 bits and refined by one step of Newton's
    method, to within 2^-14 of itself.  c - r / N and the products have 31 bits, each rounded half up, and y is rounded once.

    Source: qfunc; TOSA 1.0: REDUCE_SUM, MUL, CLZ, TABLE, RESCALE.

    >>> NormFixed()
    NormFixed()
    """

    @property
    def float_bias(self) -> bool:
        """True: weight and bias are real numbers."""
        return True

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of a norm.

        Raises:
            EmulationError: an instance norm that keeps running statistics, or parameters that are computed.
        """
        if unit.kind not in _KINDS:
            raise unit.unfit(self, _KINDS)
        x, *_ = unit.coded_inputs
        norm = _of_function(unit) if unit.module is None else _of_module(unit, unit.module)
        factors = (Constant(norm.weight, "factors"), Constant(norm.bias, "offsets"))
        scales = (x.coding.scale, unit.coding.scale)
        terms = (x, x.coding.zero_point, norm.over, unit.kind != "rms_norm", *scales, *factors, norm.eps)
        return Computation(norm_codes, (*terms, *unit.code_range, unit.path))


class _Norm(NamedTuple):
    """The parameters of a norm; `over` is that of `norm_codes`."""

    weight: Tensor
    bias: Tensor
    eps: float
    over: Any


def norm_codes(
    codes: Tensor, zero_in: int, over: Sequence[int] | int, centred: bool, scale_in: float, scale_out: float,
    weight: Tensor, bias: Tensor, eps: float, zero: int, low: int, high: int, where: str,
) -> Tensor:  # fmt: skip
    """Return the codes of a norm: see `NormFixed`.

    `over` is the lengths of the last axes, which one statistic has, or the number of groups, 0 for one an instance.

    Raises:
        EmulationError: a statistic of more codes than 31 bits sum.
    """
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


def _of_function(unit: UnitSpec) -> _Norm:
    kind, arguments = unit.kind, unit.arguments
    weight = _constant(unit, "weight", 1.0)
    bias = torch.zeros(1) if kind == "rms_norm" else _constant(unit, "bias", 0.0)
    eps = arguments["eps"]
    if kind in ("layer_norm", "rms_norm"):
        eps = torch.finfo(torch.float32).eps if eps is None else eps
        return _Norm(weight, bias, eps, arguments["normalized_shape"])
    if kind == "instance_norm" and not arguments["use_input_stats"]:
        raise _running(unit)
    return _Norm(weight, bias, eps, arguments["num_groups"] if kind == "group_norm" else 0)


def _of_module(unit: UnitSpec, module: nn.Module) -> _Norm:
    if not isinstance(module, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d) or module.running_mean is not None:
        raise _running(unit)
    weight = torch.ones(1) if module.weight is None else module.weight.detach().float()
    return _Norm(weight, torch.zeros(1) if module.bias is None else module.bias.detach().float(), module.eps, 0)


def _running(unit: UnitSpec) -> EmulationError:
    do = "Use nn.BatchNorm, or track_running_stats=False."
    return unit.error("running statistics", "statistics of the input", do)


def _constant(unit: UnitSpec, name: str, default: float) -> Tensor:
    operand = unit.arguments[name]
    if operand is None:
        return torch.full((1,), default)
    if operand.shape is None:
        do = "Make them parameters or buffers of the model."
        raise unit.error("parameters that the model computes", "constants", do)
    value: Tensor = operand.real
    return value
