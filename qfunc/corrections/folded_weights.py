"""The weights of a float model as a chip stores them: with the BatchNorms that fold into them."""

from __future__ import annotations

from functools import cached_property

from torch import Tensor, fx

from qfunc.graph.copying import sharing_parameters
from qfunc.graph.linear_op import LinearOp
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


__all__ = ["FoldedWeights"]
