"""One view of ops with a constant weight: w of shape [out, in / groups, ...] and b of shape [out], in float64."""

from __future__ import annotations

from typing import Any

import torch
from attrs import Factory, field, frozen
from torch import Tensor, fx, nn

from qfunc.graph.constants import AttributeNodes, model_path, read_attr, replace, store
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, has, kind_of, op_of


@frozen(eq=False)
class LinearOp:
    """A conv, conv_transpose or linear of a captured model with a constant weight and bias.

    >>> from qfunc.frontend.capture import capture
    >>> from torch import nn
    >>> net = capture()(nn.ConvTranspose2d(4, 6, (3, 5), groups=2))
    >>> op = linear_op(net, next(n for n in net.graph.nodes if n.op == "call_function"))
    >>> op.weight().shape, op.bias().shape, op.spatial
    (torch.Size([6, 2, 3, 5]), torch.Size([6]), 2)
    """

    model: fx.GraphModule
    node: fx.Node
    attributes: AttributeNodes = field(default=Factory(lambda op: AttributeNodes(op.model.graph), takes_self=True), repr=False)
    """The nodes that read the model's tensors: one value for all ops of a pass."""
    kind: str = field(init=False)
    """conv, conv_transpose or linear."""

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "kind", kind_of(self.node))

    @property
    def constants(self) -> tuple[fx.Node, fx.Node | None]:
        """The nodes of the weight and of the bias (None if the op has none): each of these ops reads (x, w, b, ...)."""
        _, weight, bias, *_ = self.node.args
        return weight, bias  # type: ignore[return-value]

    @property
    def stored(self) -> Tensor:
        """The weight as the model stores it."""
        return read_attr(self.model, self.constants[0])

    @property
    def groups(self) -> int:
        """The number of groups."""
        return 1 if self.kind == "linear" else int(attribute(self.node, "groups"))

    @property
    def spatial(self) -> int:
        """The number of spatial axes."""
        return self.stored.ndim - 2

    @property
    def outputs(self) -> int:
        """The number of output channels."""
        stored = self.stored
        return stored.shape[1] * self.groups if self.kind == "conv_transpose" else stored.shape[0]

    @property
    def inputs(self) -> int:
        """The number of input channels."""
        return self.stored.shape[0] if self.kind == "conv_transpose" else self.stored.shape[1] * self.groups

    @property
    def pads(self) -> bool:
        """True if some outputs read padding zeros, so that a constant input does not give a constant output."""
        if self.kind != "conv":
            return self.kind == "conv_transpose"
        padding = attribute(self.node, "padding")
        return padding not in (0, "valid") and not (isinstance(padding, list | tuple) and not any(padding))

    def weight(self) -> Tensor:
        """Return w in float64, as a copy."""
        stored = self.stored.detach().to(torch.float64, copy=True)
        return self._swap_in_out(stored, self.groups) if self.kind == "conv_transpose" else stored

    def bias(self) -> Tensor:
        """Return b in float64, as a copy; zeros if the op has none."""
        _, node = self.constants
        if node is None:
            return torch.zeros(self.outputs, dtype=torch.float64, device=self.stored.device)
        return read_attr(self.model, node).detach().to(torch.float64, copy=True)

    def put(self, weight: Tensor, bias: Tensor | None, shift_trains: bool | None = None) -> None:
        """Replace the weight and bias (None: keep the bias), rounded once to the op's dtype.

        If a tensor has other readers, they keep the old one.  The weight trains if the old one did; the bias if the old one
        or the shift did, and without either if the weight does.

        Args:
            weight, bias: The new values.
            shift_trains: Whether the parameter trained that was added after the op; None if there was none.
        """
        spec = op_of(self.node)
        assert spec is not None
        weight_node, bias_node = self.constants
        old, weight_path = self.stored, model_path(weight_node)
        stored = self._swap_in_out(weight, self.groups) if self.kind == "conv_transpose" else weight
        trained = old.requires_grad
        new: dict[str, Any] = {
            "weight": replace(self.model, self.node, weight_node, stored.to(old.dtype), trained, self.attributes)
        }
        old_bias = None if bias_node is None else read_attr(self.model, bias_node)
        shifts = [old_bias.requires_grad] if isinstance(old_bias, nn.Parameter) else []
        shifts += [] if shift_trains is None else [shift_trains]
        trained = any(shifts) if shifts else trained
        if bias is not None and bias_node is not None:
            new["bias"] = replace(self.model, self.node, bias_node, bias.to(old.dtype), trained, self.attributes)
        elif bias is not None:
            bias_path = weight_path.removesuffix("weight") + "bias"
            new["bias"] = store(self.model, self.node, bias_path, bias.to(old.dtype), trained)
        self.node.args = tuple(new.get(name, a) for name, a in zip(spec.parameters, self.node.args, strict=True))

    @staticmethod
    def _swap_in_out(weight: Tensor, groups: int) -> Tensor:
        # [groups * a, b, ...] to [groups * b, a, ...]: a transposed conv's weight has its groups along the input axis.
        split = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:]).transpose(1, 2)
        return split.reshape(groups * weight.shape[1], weight.shape[0] // groups, *weight.shape[2:]).contiguous()


def linear_op(model: fx.GraphModule, node: fx.Node, attributes: AttributeNodes | None = None) -> LinearOp | None:
    """Return the node as a LinearOp; None unless it is such an op with a constant weight and no computed bias."""
    if not has(node, Trait.WEIGHTED):
        return None
    _, weight, bias, *_ = node.args
    constant = all(w is None or (isinstance(w, fx.Node) and w.op == "get_attr") for w in (weight, bias))
    return LinearOp(model, node, attributes or AttributeNodes(model.graph)) if constant and weight is not None else None


def after(weight: Tensor, bias: Tensor, factor: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Return w and b of factor * op(x) + shift.

    >>> after(torch.ones(2, 1), torch.ones(2), torch.tensor([2.0, 3.0]), torch.tensor([0.0, 1.0]))[1]
    tensor([2., 4.])
    """
    return weight * factor.reshape(-1, *[1] * (weight.ndim - 1)), bias * factor + shift


def before(weight: Tensor, bias: Tensor, factor: Tensor, shift: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Return w and b of op(factor * x + shift), for an op without padding.

    >>> before(torch.ones(1, 2), torch.ones(1), torch.tensor([2.0, 3.0]), torch.tensor([4.0, 5.0]), 1)
    (tensor([[2., 3.]]), tensor([10.]))
    """
    grouped = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    shape = (groups, 1, weight.shape[1], *[1] * (weight.ndim - 2))
    constant = (grouped * shift.reshape(shape)).reshape(weight.shape).flatten(1).sum(1)
    return (grouped * factor.reshape(shape)).reshape(weight.shape), bias + constant
