"""The producer of a tensor whose channels can be scaled, and the ops with weights that read it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx, nn

from qfunc.corrections.channel_scaling import Layout
from qfunc.graph.constants import AttributeNodes, read_attr
from qfunc.graph.copying import sharing_parameters
from qfunc.graph.linear_op import LinearOp, after, before, linear_op
from qfunc.graph.record import path_of
from qfunc.ops.node import attribute, channel_axis, kind_of
from qfunc.passes.fold_batch_norm import fold_into
from qfunc.specs import Target


class FoldedWeights:
    """The weights of a captured model after folding, as they are at the first question.

    >>> import torch
    >>> from torch import nn
    >>> from qfunc.frontend.capture import capture
    >>> from qfunc.graph.linear_op import linear_op
    >>> net = capture()(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1, eps=0.0)).eval())
    >>> _ = net.get_parameter("0.weight").data.fill_(5.0), net.get_parameter("1.weight").data.fill_(2.0)
    >>> op = linear_op(net, next(n for n in net.graph.nodes if n.op == "call_function"))
    >>> FoldedWeights(net).of(op)
    tensor([[10.]], dtype=torch.float64)
    """

    def __init__(self, model: fx.GraphModule, target: Target | None = None) -> None:
        """Take a model, and the target whose fusions fold other steps, too."""
        self.model, self.target = model, target

    @cached_property
    def _ops(self) -> dict[str, LinearOp]:
        # Folding replaces parameters and changes none, so that the copy shares those without a BatchNorm.
        folded = fold_into(sharing_parameters(self.model), self.target)
        names = {n.name for n in self.model.graph.nodes}
        return {n.name: LinearOp(folded, n) for n in folded.graph.nodes if n.name in names and n.op == "call_function"}

    def of(self, op: LinearOp) -> Tensor:
        """Return the weight of an op, [out, in / groups, ...] in float64."""
        return self._ops.get(op.node.name, op).weight()


@frozen(eq=False)
class Rows:
    """A conv, transposed conv or linear, with the BatchNorm that is its only reader, if there is one: y = norm(w x + b)."""

    op: LinearOp
    folded: FoldedWeights
    norm: fx.Node | None = None

    @property
    def model(self) -> fx.GraphModule:
        """The model of the op."""
        return self.op.model

    @property
    def node(self) -> fx.Node:
        """The node with the value y."""
        return self.norm or self.op.node

    @property
    def channels(self) -> int:
        """The number of channels of y."""
        return int(self.op.bias().numel())

    @property
    def layout(self) -> Layout:
        """The layout of the channels of y."""
        return Layout(1, None) if self.op.kind == "linear" else Layout(self.op.spatial + 1, self.op.spatial + 2)

    def weight(self) -> Tensor:
        """Return w with BatchNorms folded, as the chip stores it: [out, in / groups, ...] in float64."""
        return self.folded.of(self.op)

    def divide(self, by: Tensor) -> None:
        """Divide y by one positive number per channel, in the BatchNorm if there is one; statistics do not change."""
        if self.norm is not None:
            module: Any = self.op.model.get_submodule(str(self.norm.target))
            divide_norm(module, by)
        else:
            weight, bias = after(self.op.weight(), self.op.bias(), by.reciprocal(), torch.zeros_like(by))
            self.op.put(weight, bias if attribute(self.op.node, "bias") is not None else None)


@frozen(eq=False)
class Columns:
    """An op that reads the channels as columns of its weight; a flattened image has `repeat` consecutive columns each."""

    op: LinearOp
    folded: FoldedWeights
    through: tuple[fx.Node, ...]
    repeat: int = 1

    def weight(self) -> Tensor:
        """Return w with BatchNorms folded, as the chip stores it: [out, in / groups, ...] in float64."""
        return self.folded.of(self.op)

    def ranges(self) -> Tensor:
        """Return max |w| over each channel's columns."""
        weight = self.weight()
        grouped = weight.reshape(self.op.groups, weight.shape[0] // self.op.groups, weight.shape[1], -1)
        columns: Tensor = grouped.abs().amax((1, 3)).reshape(-1, self.repeat)
        return columns.amax(1)

    def each(self, by: Tensor) -> Tensor:
        """Return one number per channel, repeated for each of its columns."""
        return by.repeat_interleave(self.repeat)

    def multiply(self, by: Tensor, shift: Tensor | None = None) -> None:
        """Change the weight and bias so that the op computes on  by * x + shift  in place of x."""
        shift = torch.zeros_like(by) if shift is None else shift
        bias = attribute(self.op.node, "bias") is not None or bool(shift.count_nonzero())
        weight, new = before(self.op.weight(), self.op.bias(), self.each(by), self.each(shift), self.op.groups)
        self.op.put(weight, new if bias else None)


class ScalableOps:
    """Finds `Rows` and `Columns` in a model.

    >>> from torch import nn
    >>> from qfunc.frontend.capture import capture
    >>> net = capture()(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3)))
    >>> [ScalableOps(net).rows(n).node.name for n in net.graph.nodes if kind_of(n) == "conv"]
    ['_1', '_3']
    """

    def __init__(self, model: fx.GraphModule, target: Target | None = None) -> None:
        self.model, self.attributes, self.folded = model, AttributeNodes(model.graph), FoldedWeights(model, target)
        self.reads: dict[int, int] = {}
        self.calls: dict[str, int] = {}
        for node in model.graph.nodes:
            if node.op == "get_attr" and isinstance(value := read_attr(model, node), Tensor):
                self.reads[id(value)] = self.reads.get(id(value), 0) + len(node.users)
            elif node.op == "call_module":
                self.calls[str(node.target)] = self.calls.get(str(node.target), 0) + 1

    def has_one_reader(self, node: fx.Node) -> bool:
        """Return True if no other op reads the tensor of a constant."""
        return self.reads.get(id(read_attr(self.model, node)), 0) == 1

    def weighted(self, node: fx.Node) -> LinearOp | str:
        """Return the op of a node, or the reason why its weight cannot change."""
        op = linear_op(self.model, node, self.attributes)
        if op is None or (op.kind == "linear" and channel_axis(node)) or op.stored.dtype not in _FLOATS:
            return f"the weight or bias of {path_of(self.model, node)!r} is computed, not a parameter"
        constants = [n for n in (attribute(node, "weight"), attribute(node, "bias")) if n is not None]
        shared = [n for n in constants if not self.has_one_reader(n)]
        return f"{shared[0].target!r} is shared with another op" if shared else op

    def rows(self, node: fx.Node) -> Rows | str:
        """Return the op of a node with its BatchNorm, or the reason why it cannot be divided."""
        op = self.weighted(node)
        if isinstance(op, str):
            return op
        readers = [n for n in node.users if kind_of(n) != "size"]
        norm = readers[0] if len(readers) == 1 and kind_of(readers[0]) == "batch_norm" else None
        if norm is None:
            return Rows(op, self.folded)
        module: Any = self.model.get_submodule(str(norm.target))
        if getattr(module, "running_var", None) is None or module.running_var.numel() != op.bias().numel():
            where = f"{path_of(self.model, norm)!r} does not normalize the channels of {path_of(self.model, node)!r}"
            return f"{where} with running statistics"
        return (
            Rows(op, self.folded, norm)
            if self.calls[str(norm.target)] == 1
            else f"{path_of(self.model, norm)!r} normalizes other tensors, too"
        )


_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def moments(model: fx.GraphModule, norm: fx.Node) -> tuple[Tensor, Tensor]:
    """Return the deviation |gamma| and the mean beta of a BatchNorm's output, per channel, in float64.

    >>> from qfunc.frontend.capture import capture
    >>> net = capture()(nn.Sequential(nn.BatchNorm2d(2)))
    >>> moments(net, next(n for n in net.graph.nodes if n.op == "call_module"))
    (tensor([1., 1.], dtype=torch.float64), tensor([0., 0.], dtype=torch.float64))
    """
    module: Any = model.get_submodule(str(norm.target))
    one = torch.ones_like(module.running_var, dtype=torch.float64)
    gamma = one if module.weight is None else module.weight.detach().double().abs()
    return gamma, 0 * one if module.bias is None else module.bias.detach().double()


def divide_norm(module: Any, by: Tensor) -> None:
    """Divide gamma and beta by one positive number per channel; create them if the norm has none."""
    gamma = torch.ones_like(by) if module.weight is None else module.weight.detach().double()
    beta = torch.zeros_like(by) if module.bias is None else module.bias.detach().double()
    store_norm(module, gamma / by, beta / by)


def store_norm(module: Any, gamma: Tensor, beta: Tensor) -> None:
    """Replace gamma and beta of a BatchNorm that the caller owns."""
    for name, value in (("weight", gamma), ("bias", beta)):
        old = getattr(module, name)
        trained, dtype = (True, module.running_var.dtype) if old is None else (old.requires_grad, old.dtype)
        setattr(module, name, nn.Parameter(value.to(dtype), requires_grad=trained))
    module.affine = True
