"""Ops that compute factor * x + shift per channel with constants: BatchNorms in evaluation mode, in every spelling.

A BatchNorm is  norm(x) = gamma * (x - mean) / sqrt(var + eps) + beta,  hence  factor = gamma / sqrt(var + eps)  and
shift = beta - mean * factor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor, fx

from qfunc.graph.constants import computable, dtypes_of, value_of
from qfunc.graph.data_movement import value_readers
from qfunc.graph.matcher import Rewrite, match_rewrite
from qfunc.graph.patterns import Match, OpPattern, Var, op
from qfunc.ops.node import kind_of

Change = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Returns the new factor and shift from the present ones and a constant."""

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
        self.known: dict[fx.Node, Tensor] = {}

    @cached_property
    def constant(self) -> set[fx.Node]:
        """The nodes that depend on constants alone, computed at the first use."""
        return computable(self.model.graph)

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

    def chain_after(self, root: fx.Node, channels: int, spatial: int, dtype: torch.dtype) -> ChannelAffine | None:
        """Return the longest chain of ops after an op that scale and shift its channels by constants; None without one.

        Models write a frozen BatchNorm in this form, x * scale + bias or (x - mean) / deviation * gamma + beta, and the
        scale of a layer, x * 0.1 or x * gamma.
        """
        factor, shift = torch.ones(channels, dtype=torch.float64), torch.zeros(channels, dtype=torch.float64)
        seen: list[fx.Node] = []
        last = root
        while len(readers := value_readers(last)) == 1:
            ((node, passed),) = readers.items()
            step = self._step((last, *passed)[-1], node, channels, spatial, dtype)
            if step is None:
                break
            change, constant = step
            factor, shift = change(factor, shift, constant)
            seen.append(node)
            last = node
        return ChannelAffine(tuple(seen), factor, shift) if seen else None

    def _step(self, last: fx.Node, node: fx.Node, *of_root: Any) -> tuple[Change, Tensor] | None:
        # Return how a reader of the chain's last op changes it, and the constant; None if it does not belong to the chain.
        rows = [row for row in _STEPS if kind_of(node) in row[0].kinds]
        others = [a for a in node.args if a is not last]
        constant = self._number(others[0], *of_root) if rows and len(others) == 1 else None
        for pattern, change in rows if constant is not None else ():
            check = lambda found: "" if found["x"] is last else "divided"  # noqa: E731
            if isinstance(match_rewrite(Rewrite("batch_norm", pattern, lambda found: None, check=check), node), Match):
                assert constant is not None
                return change, constant
        return None

    def _number(self, value: Any, channels: int, spatial: int, dtype: torch.dtype) -> Tensor | None:
        # Return a constant: one number for all channels (rank 0), or one per channel (rank 1); None for other operands.
        if isinstance(value, int | float):
            return torch.tensor(float(value), dtype=torch.float64)
        if not isinstance(value, fx.Node) or value not in self.constant:
            return None
        tensor = value_of(self.model, value, self.known)
        if not tensor.is_floating_point() or tensor.numel() not in (1, channels) or tensor.ndim > spatial + 2:
            return None
        if tensor.ndim == 0:
            return tensor
        if dtypes_of(self.model, value) != {dtype}:
            return None  # the result may have another dtype than the op
        axis = tensor.ndim - spatial - 1
        # A leading axis of length 1 is the batch axis.
        per_channel = axis >= 0 and tensor.shape[axis] == tensor.numel() == channels
        return tensor.reshape(channels) if per_channel else tensor.reshape(()) if tensor.numel() == 1 else None


_X, _C = Var("x"), Var("c")

_STEPS: tuple[tuple[OpPattern, Change], ...] = (
    (op("add", _X, _C, commutative=True), lambda factor, shift, c: (factor, shift + c)),
    (op("sub", _X, _C), lambda factor, shift, c: (factor, shift - c)),
    (op("sub", _C, _X), lambda factor, shift, c: (-factor, c - shift)),
    (op("mul", _X, _C, commutative=True), lambda factor, shift, c: (factor * c, shift * c)),
    (op("div", _X, _C), lambda factor, shift, c: (factor / c, shift / c)),
)
"""The ops of a chain: how each changes the factor and the shift of x by a constant c."""


def _norm(node: fx.Node, weight: Any, bias: Any, mean: Any, variance: Any, eps: Any) -> ChannelAffine:
    factor = torch.rsqrt(variance.detach().double() + eps)
    factor = factor if weight is None else factor * weight.detach().double()
    shift = -mean.detach().double() * factor
    return ChannelAffine((node,), factor, shift if bias is None else shift + bias.detach().double())
