"""Bounds of the float32 error of norms: of mean and variance by the rule of sums, and their effect on the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor, fx, nn

from qfunc.emulation.approximation import UNIT as _U
from qfunc.emulation.approximation import Approximation, setting
from qfunc.ops.node import parameters_of


def _layer_norm(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    dims = list(range(-len(setting(node, arguments, "normalized_shape")), 0))
    return _scaled(node, arguments, value, _normalized(arguments[0], dims, float(setting(node, arguments, "eps"))), last=True)


def _rms_norm(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    dims, eps = list(range(-len(setting(node, arguments, "normalized_shape")), 0)), setting(node, arguments, "eps")
    least = torch.finfo(torch.float32).eps if eps is None else float(eps)
    return _scaled(node, arguments, value, _normalized(arguments[0], dims, least, centred=False), last=True)


def _group_norm(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    x, groups = arguments[0], int(setting(node, arguments, "num_groups"))
    shape = (x.value.shape[0], groups, -1)
    rows = Approximation(x.value.reshape(shape), x.error.reshape(shape))
    error = _normalized(rows, [2], float(setting(node, arguments, "eps"))).reshape(x.value.shape)
    return _scaled(node, arguments, value, error, last=False)


def _instance_norm(node: fx.Node, arguments: Any, value: Tensor) -> Tensor | None:
    x = arguments[0]
    if not setting(node, arguments, "use_input_stats"):
        return None
    error = _normalized(x, list(range(2, x.value.ndim)), float(setting(node, arguments, "eps")))
    return _scaled(node, arguments, value, error, last=False)


@frozen(eq=False)
class Spread:
    """Mean, offsets from it and variance of a tensor, with the bounds of their errors; the axes stay.

    The variance may be computed as mean(x^2) - m^2, too.
    """

    mean_error: Tensor
    offset: Tensor
    offset_error: Tensor
    variance: Tensor
    variance_error: Tensor


def spread_of(x: Approximation, dims: Sequence[int], centred: bool = True) -> Spread:
    """Return the `Spread` along some axes; around 0 unless `centred`."""
    v, e, dims = x.value, x.error, list(dims)
    n = math.prod(v.shape[d] for d in dims)

    def mean(t: Tensor) -> Tensor:
        return t.mean(dims, keepdim=True)

    m = mean(v) if centred else torch.zeros_like(mean(v))
    mean_error = mean(e) + (n + 2) * _U * mean(v.abs()) if centred else torch.zeros_like(m)
    d = v - m
    offset_error = e + mean_error + _U * (v.abs() + m.abs())
    error = mean(2 * d.abs() * offset_error + offset_error**2) + (n + 4) * _U * (mean(v * v) + m * m)
    return Spread(mean_error, d, offset_error, mean(d * d), error)


def _normalized(x: Approximation, dims: Sequence[int], eps: float, centred: bool = True) -> Tensor:
    # The error of (x - m) / sqrt(v + eps).
    s = spread_of(x, dims, centred)
    factor = torch.rsqrt(s.variance + eps)
    least = torch.rsqrt((s.variance - s.variance_error).clamp(min=0) + eps)
    factor_error = least - factor + 8 * _U * factor
    return s.offset_error * (factor + factor_error) + s.offset.abs() * factor_error + _U * s.offset.abs() * factor


def _response_norm(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    # The error of x d^-beta for d = k + alpha mean(x^2) over the channels near x; exp(-beta log d) has that of log d, too.
    x, size = arguments[0], int(setting(node, arguments, "size"))
    alpha, beta, k = (float(setting(node, arguments, name)) for name in ("alpha", "beta", "k"))
    v, e = x.value, x.error

    def mean(t: Tensor) -> Tensor:
        padded = F.pad(t.flatten(2).unsqueeze(1), (0, 0, size // 2, (size - 1) // 2))
        return F.avg_pool2d(padded, (size, 1), 1).reshape(t.shape)

    square = mean(v * v)
    d = k + alpha * square
    d_error = abs(alpha) * (mean(2 * v.abs() * e + e * e) + (size + 4) * _U * square) + 2 * _U * (abs(k) + abs(alpha) * square)
    factor, ends = d**-beta, [(d + sign * d_error).clamp(min=0) ** -beta for sign in (-1, 1)]
    factor_error = torch.fmax(*[(end - factor).abs() for end in ends]) + (32 + 2 * abs(beta) * d.log().abs()) * _U * factor
    error: Tensor = e * (factor + factor_error) + v.abs() * factor_error + 2 * _U * value.abs()
    return error


def _scaled(node: fx.Node, arguments: Any, value: Tensor, error: Tensor, *, last: bool) -> Tensor:
    # The error of x * weight + bias, given that of x.
    given = dict(zip(parameters_of(node), arguments, strict=True))
    weight, bias = (v.value if isinstance(v := given.get(name), Approximation) else None for name in ("weight", "bias"))
    return _affine(weight, bias, value, error, (-1,) if last else (1, -1, *[1] * (value.ndim - 2)))


def _affine(weight: Tensor | None, bias: Tensor | None, value: Tensor, error: Tensor, shape: tuple[int, ...]) -> Tensor:
    if weight is not None:
        error = error * weight.reshape(shape if len(shape) > 1 else weight.shape).abs()
    rest = torch.zeros(()) if bias is None else bias.reshape(shape if len(shape) > 1 else bias.shape).abs()
    return error + 3 * _U * (value.abs() + rest)


def approximate_module(module: nn.Module, inputs: tuple[Any, ...]) -> Approximation | None:
    """Return the `Approximation` of the result of a module, or None if no rule bounds its error.

    Args:
        module: A module of the float network.
        inputs: An `Approximation` for each real tensor.
    """
    (x,) = inputs
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm):
        return _batch_norm(module, x) if isinstance(x, Approximation) else None
    if not isinstance(module, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d) or module.track_running_stats:
        return None
    weight, bias = (None if p is None else p.detach().double() for p in (module.weight, module.bias))
    if not isinstance(x, Approximation) or x.value.ndim < 3:
        return None
    value = F.instance_norm(x.value, weight=weight, bias=bias, eps=module.eps)
    error = _normalized(x, list(range(2, value.ndim)), module.eps)
    return Approximation(value, _affine(weight, bias, value, error, (1, -1, *[1] * (value.ndim - 2))))


def _batch_norm(
    module: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm, x: Approximation
) -> Approximation | None:
    # x a + (b - m a) with a = w / sqrt(v + eps): a and each product have up to eight roundings, whatever the order.
    if module.training or module.running_mean is None or module.running_var is None:
        return None
    shape = (1, -1, *[1] * (x.value.ndim - 2))
    m, v = (t.detach().double().reshape(shape) for t in (module.running_mean, module.running_var))
    w, b = (None if p is None else p.detach().double().reshape(shape) for p in (module.weight, module.bias))
    a = torch.rsqrt(v + module.eps) * (1 if w is None else w)
    offset = torch.zeros_like(a) if b is None else b
    magnitudes = x.value.abs() * a.abs() + (m * a).abs() + offset.abs()
    return Approximation((x.value - m) * a + offset, x.error * a.abs() * (1 + 8 * _U) + 8 * _U * magnitudes)


NORMS: dict[str, Callable[[fx.Node, Any, Tensor], Tensor | None]] = {
    "layer_norm": _layer_norm, "rms_norm": _rms_norm, "group_norm": _group_norm, "instance_norm": _instance_norm,
    "local_response_norm": _response_norm,
}  # fmt: skip
"""The rule of each norm."""
