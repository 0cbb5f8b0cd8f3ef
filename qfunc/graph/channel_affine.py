"""Ops that compute factor * x + shift per channel with constants: BatchNorms in evaluation mode, in every spelling.

A BatchNorm is  norm(x) = gamma * (x - mean) / sqrt(var + eps) + beta,  hence  factor = gamma / sqrt(var + eps)  and
shift = beta - mean * factor.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor, fx

from qfunc.graph.constants import computable, dtypes_of, value_of
from qfunc.ops.node import kind_of

_OF_F = tuple(inspect.signature(F.batch_norm).parameters)
_OF_TORCH = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps", "cudnn_enabled")
_CALLS: dict[Any, tuple[str, ...]] = {
    F.batch_norm: _OF_F,
    torch.batch_norm: _OF_TORCH,
    torch.ops.aten.batch_norm.default: _OF_TORCH,
}


def batch_norm_arguments(node: fx.Node) -> dict[str, Any] | None:
    """Return the arguments of a call of batch_norm by name; None for any other node."""
    names = _CALLS.get(node.target) if node.op == "call_function" else None
    if names is None:
        return None
    defaults = {"weight": None, "bias": None, "training": False, "eps": 1e-5}
    return {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs}


@frozen(eq=False)
class ChannelAffine:
    """factor * x + shift with one float64 number per channel; `nodes` are its ops, and the first reads x."""

    nodes: tuple[fx.Node, ...]
    factor: Tensor
    shift: Tensor


class ChannelAffines:
    """Finds the norms of one graph.

    >>> from qfunc.frontend.capture import capture
    >>> from torch import nn
    >>> net = capture()(nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2, eps=0.0)).eval())
    >>> [ChannelAffines(net).at(n).factor for n in net.graph.nodes if n.op == "call_module"]
    [tensor([1., 1.], dtype=torch.float64)]
    """

    def __init__(self, model: fx.GraphModule) -> None:
        self.model = model
        self.constant = computable(model.graph)
        self.known: dict[fx.Node, Tensor] = {}

    def at(self, node: fx.Node) -> ChannelAffine | None:
        """Return the affine map of one BatchNorm: a leaf of torch.nn, or a call with constant statistics."""
        if not node.op.startswith("call"):
            return None
        if kind_of(node) == "batch_norm":
            module: Any = self.model.get_submodule(str(node.target))
            if getattr(module, "running_mean", None) is None:
                return None
            return _norm(node, module.weight, module.bias, module.running_mean, module.running_var, module.eps)
        arguments = batch_norm_arguments(node)
        if arguments is None:
            return None
        tensors: list[Any] = [arguments[name] for name in ("weight", "bias", "running_mean", "running_var")]
        constant = all(v in self.constant for v in tensors if v is not None)
        if arguments["training"] is not False or not constant or tensors[2] is None or tensors[3] is None:
            return None
        weight, bias, mean, variance = (v if v is None else value_of(self.model, v, self.known) for v in tensors)
        return _norm(node, weight, bias, mean, variance, arguments["eps"])

    def chain_after(self, op: fx.Node, channels: int, spatial: int, dtype: torch.dtype) -> ChannelAffine | None:
        """Return the longest chain of ops after an op that scales and shifts its channels by constants; None without one.

        Models write a frozen BatchNorm in this form: x * scale + bias, or (x - mean) / deviation * gamma + beta.
        """
        factor, shift = torch.ones(channels, dtype=torch.float64), torch.zeros(channels, dtype=torch.float64)
        seen: list[fx.Node] = []
        scaled = shifted = 0
        last, found = op, None
        while len(last.users) == 1:
            node = next(iter(last.users))
            number = self._operand(node, last, channels, spatial, dtype)
            if number is None:
                break
            kind, first = kind_of(node), node.args[0] is last
            if kind == "add":
                shift = shift + number
            elif kind == "sub":
                factor, shift = (factor, shift - number) if first else (-factor, number - shift)
            elif kind == "mul":
                factor, shift = factor * number, shift * number
            else:
                factor, shift = factor / number, shift / number
            scaled += kind in ("mul", "div") and number.ndim == 1
            shifted += kind in ("add", "sub") and number.ndim == 1
            seen.append(node)
            last = node
            if scaled and shifted:
                found = ChannelAffine(tuple(seen), factor, shift)
        return found

    def _operand(self, node: fx.Node, chain: fx.Node, channels: int, spatial: int, dtype: torch.dtype) -> Tensor | None:
        # Return the other operand: one number for all channels (rank 0), or one per channel (rank 1).
        kind = kind_of(node)
        if kind not in ("add", "sub", "mul", "div"):
            return None
        first, second = node.args
        other = second if first is chain else first
        if other is chain or (kind == "div" and second is chain):
            return None
        if isinstance(other, int | float):
            return torch.tensor(float(other), dtype=torch.float64)
        if not isinstance(other, fx.Node) or other not in self.constant:
            return None
        value = value_of(self.model, other, self.known)
        if not value.is_floating_point() or value.numel() not in (1, channels) or value.ndim > spatial + 2:
            return None
        if value.ndim == 0:
            return value
        if dtypes_of(self.model, other) != {dtype}:
            return None  # the result may have another dtype than the op
        axis = value.ndim - spatial - 1
        # A leading axis of length 1 is the batch axis.
        per_channel = axis >= 0 and value.shape[axis] == value.numel() == channels
        return value.reshape(channels) if per_channel else value.reshape(()) if value.numel() == 1 else None


def _norm(node: fx.Node, weight: Any, bias: Any, mean: Any, variance: Any, eps: Any) -> ChannelAffine:
    factor = torch.rsqrt(variance.detach().double() + eps)
    factor = factor if weight is None else factor * weight.detach().double()
    shift = -mean.detach().double() * factor
    return ChannelAffine((node,), factor, shift if bias is None else shift + bias.detach().double())
