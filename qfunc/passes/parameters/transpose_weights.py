"""Give products of weights [K, N] a weight [N, K], for targets with blocks along the inputs of linear layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from qfunc.graph.constants import read_attr
from qfunc.graph.evaluation_form import evaluate
from qfunc.ops.linear import dense
from qfunc.ops.node import attribute, kind_of
from qfunc.passes.parameters.fold_constant_weights import constant_nodes
from qfunc.specs import Cases, FixedQParams, PerBlock, Scheme, Target


def transpose_weights(network: fx.GraphModule, target: Target) -> fx.GraphModule:
    """Write x @ w of a matrix w of parameters, and addmm(b, x, w), as linear layers with the weight w^T, in place.

    Engines with weights in blocks hold [N, K] and have their blocks along K, the last axis.  GPT-2's layers hold [K, N].  w
    stays the parameter of the model, and `fold_constant_weights` makes w^T a constant.  Networks for targets whose rules have
    no weights in blocks stay as they are.

    >>> from qfunc.frontend.capture import capture
    >>> from qfunc.targets import onnxruntime_nbits
    >>> network = transpose_weights(capture()(_Product()), onnxruntime_nbits())
    >>> [n.target.__name__ for n in network.graph.nodes if n.op == "call_function"]
    ['transpose', 'linear']
    """
    if not any(isinstance(scheme.scale.shared, PerBlock) for scheme in _weight_schemes(target)):
        return network
    constants, values = constant_nodes(network.graph), dict[fx.Node, Any]()
    for node in list(network.graph.nodes):
        found = _product(node)
        if found is None or found[1] not in constants or not _is_matrix(network, found[1], values):
            continue
        if node.target is not dense and not _has_parameter(network, found[1]):
            continue  # a matrix of numbers, such as that of a Fourier transform, is no layer
        x, weight, bias = found
        with network.graph.inserting_before(node):
            turned = _transposed(weight)
            turned = network.graph.call_function(torch.transpose, (weight, 0, 1)) if turned is None else turned
        node.target, node.args, node.kwargs = F.linear, (x, turned, bias), {}
    network.graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))
    network.recompile()
    return network


def _weight_schemes(target: Target) -> Iterator[Scheme]:
    for rule in target.rules:
        value = rule.weight
        each = (*(v for _, v in value.cases), value.default) if isinstance(value, Cases) else (value,)
        for one in each:
            scheme = one.scheme if isinstance(one, FixedQParams) else one
            if isinstance(scheme, Scheme):
                yield scheme


def _product(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node | None] | None:
    # (x, w, b) of x @ w + b.
    match kind_of(node):
        case "linear" if node.target is dense:
            x, weight, bias = (attribute(node, name) for name in ("input", "weight", "bias"))
        case "matmul":
            x, weight, bias = attribute(node, "input"), attribute(node, "other"), None
        case _:
            return None
    return (x, weight, bias) if isinstance(x, fx.Node) and isinstance(weight, fx.Node) else None


def _is_matrix(network: fx.GraphModule, node: fx.Node, values: dict[fx.Node, Any]) -> bool:
    value = evaluate(network, node, values)
    return isinstance(value, Tensor) and value.ndim == 2 and value.is_floating_point()


def _has_parameter(network: fx.GraphModule, node: fx.Node) -> bool:
    # True if some parameter is among the tensors from which a node is computed.
    pending, seen = [node], {node}
    while pending:
        current = pending.pop()
        if current.op == "get_attr" and isinstance(read_attr(network, current), torch.nn.Parameter):
            return True
        pending += [n for n in current.all_input_nodes if n not in seen]
        seen.update(pending)
    return False


def _transposed(weight: fx.Node) -> fx.Node | None:
    # w^T of a w that is itself the transpose of a matrix: that matrix.
    if weight.target is torch.transpose:
        swaps = attribute(weight, "dim0") % 2 != attribute(weight, "dim1") % 2
    else:
        swaps = weight.target is torch.permute and [d % 2 for d in attribute(weight, "dims")] == [1, 0]
    source = attribute(weight, "input") if swaps else None
    return source if isinstance(source, fx.Node) else None


class _Product(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight
