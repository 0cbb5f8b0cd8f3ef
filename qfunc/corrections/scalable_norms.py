"""Norms whose output can be scaled: w n(x) + b, with one w and b per channel."""

from __future__ import annotations

from typing import Any

from attrs import frozen
from torch import Tensor, fx, nn

from qfunc.corrections.channel_scaling import Layout
from qfunc.corrections.scalable_ops import ScalableOps, divide_norm
from qfunc.errors import a_or_an
from qfunc.graph.constants import read_attr
from qfunc.graph.record import path_of
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, has, kind_of, parameters_of


@frozen(eq=False)
class ScalableNorm:
    """A LayerNorm or RMSNorm over the last axis, a product with one number per channel, or a BatchNorm.

    `constants` are the nodes of w, and of b if there is one; a BatchNorm has none, because its module stores them.
    """

    model: fx.GraphModule
    node: fx.Node
    constants: tuple[fx.Node, ...]
    channels: int
    layout: Layout

    def divide(self, by: Tensor) -> None:
        """Divide w and b by one positive number per channel."""
        if not self.constants:
            divide_norm(self.model.get_submodule(str(self.node.target)), by)
        for constant in self.constants:
            owner, _, name = str(constant.target).rpartition(".")
            old = read_attr(self.model, constant)
            value = nn.Parameter((old.detach().double() / by).to(old.dtype), requires_grad=old.requires_grad)
            holder = self.model.get_submodule(owner)
            if isinstance(old, nn.Parameter):
                setattr(holder, name, value)
            else:
                setattr(holder, name, value.detach())  # a buffer stays a buffer


def scalable_norm(ops: ScalableOps, node: fx.Node) -> ScalableNorm | str | None:
    """Return the norm of a node, None if it is not a norm, or the reason why its weights cannot change."""
    kind, model = kind_of(node), ops.model
    if kind == "batch_norm":
        return _batch_norm(ops, node)
    if has(node, Trait.NORM) and "normalized_shape" in parameters_of(node):
        weight, bias = attribute(node, "weight"), attribute(node, "bias") if kind == "layer_norm" else None
        constants = [n for n in (weight, bias) if n is not None]
        if weight is None or len(attribute(node, "normalized_shape")) != 1:
            return "its norm has no weight with one number per channel"
    elif kind == "mul" and all(isinstance(a, fx.Node) for a in node.args):
        constants = [n for n in node.all_input_nodes if n.op == "get_attr" and _is_row(read_attr(model, n))]
        if len(constants) != 1 or len(node.all_input_nodes) != 2:
            return None
    else:
        return None
    if not all(n.op == "get_attr" and ops.has_one_reader(n) for n in constants):
        return "its weight is computed, or shared with another op"
    return ScalableNorm(model, node, tuple(constants), read_attr(model, constants[0]).numel(), Layout(1, None))


def _is_row(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 1 and value.is_floating_point()


def _batch_norm(ops: ScalableOps, node: fx.Node) -> ScalableNorm | str:
    module: Any = ops.model.get_submodule(str(node.target))
    if getattr(module, "running_var", None) is None or ops.calls[str(node.target)] > 1:
        return f"{path_of(ops.model, node)!r} has no running statistics, or normalizes other tensors, too"
    spatial = {nn.BatchNorm2d: 2, nn.BatchNorm3d: 3}.get(type(module))
    if spatial is None:
        return f"the channel axis of {a_or_an(type(module))} does not follow from the graph"
    return ScalableNorm(ops.model, node, (), int(module.running_var.numel()), Layout(spatial + 1, spatial + 2))
