"""The float network inside a quantized model."""

from __future__ import annotations

import torch
from attrs import evolve
from torch import Tensor, fx, nn

from qfunc.graph.evaluation_form import evaluation_form
from qfunc.graph.module import CapturedModule, in_evaluation_mode
from qfunc.graph.record import attach, record_of
from qfunc.graph.sites import quantizer_nodes
from qfunc.ops.node import kind_of

__all__ = ["float_network", "network_so_far", "same_network"]


def float_network(model: fx.GraphModule) -> fx.GraphModule:
    """The float network in evaluation form: no FakeQuantize, no dropout; tensors are shared with the model.

    Node names are those of the model.
    """
    model = evaluation_form(model)
    return _network(model, {str(n.target) for n in model.graph.nodes if kind_of(n) == "fake_quantize"})


def network_so_far(model: fx.GraphModule) -> fx.GraphModule:
    """As `float_network`, but with every FakeQuantize that is ready."""
    return _network(evaluation_form(model), {s.path for s in quantizer_nodes(model) if not s.module.ready})


def _network(model: fx.GraphModule, left_out: set[str]) -> fx.GraphModule:
    graph = fx.Graph()
    graph.set_codegen(model.graph._codegen)
    env: dict[fx.Node, fx.Node] = {}
    leaves: dict[str, nn.Module] = {}
    for node in model.graph.nodes:
        if kind_of(node) == "dropout" or (node.op == "call_module" and node.target in left_out):
            env[node] = env[node.all_input_nodes[0]]
            continue
        env[node] = graph.node_copy(node, env.__getitem__)
        if node.op == "call_module":
            leaves[str(node.target)] = in_evaluation_mode(model.get_submodule(str(node.target)))
    network = CapturedModule(_Root(model, leaves), graph)
    record = record_of(model)
    return attach(network, evolve(record, stage="captured", target=None)) if record else network


class _Root(nn.Module):
    """A view of a model whose called submodules are replaced by evaluation copies."""

    def __init__(self, model: nn.Module, leaves: dict[str, nn.Module]) -> None:
        super().__init__()
        tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        for tensor_path, tensor in tensors:
            owner, _, name = tensor_path.rpartition(".")
            holder = _descend(self, owner)
            if isinstance(tensor, nn.Parameter):
                holder.register_parameter(name, tensor)
            else:
                holder.register_buffer(name, tensor)
        for path, module in leaves.items():
            owner, _, name = path.rpartition(".")
            setattr(_descend(self, owner), name, module)
        for name, value in vars(model).items():
            if isinstance(value, Tensor):
                setattr(self, name, value)
        self.eval()


def _descend(root: nn.Module, path: str) -> nn.Module:
    for part in path.split(".") if path else ():
        if not isinstance(getattr(root, part, None), nn.Module):
            setattr(root, part, nn.Module())
        root = getattr(root, part)
    return root


def same_network(a: fx.GraphModule, b: fx.GraphModule) -> bool:
    """Whether two float networks are one: equal graphs and bit-equal tensors."""
    described = [[(n.op, str(n.target), str(n.args), str(n.kwargs)) for n in m.graph.nodes] for m in (a, b)]
    if described[0] != described[1]:
        return False
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)
