"""The float network inside a quantized model: its graph without quantizers, dropouts and detached copies."""

from __future__ import annotations

import torch
from attrs import evolve
from torch import Tensor, fx, nn

from qfunc._collection import paused_collection
from qfunc.graph.evaluation_form import evaluation_form
from qfunc.graph.module import CapturedModule, in_evaluation_mode
from qfunc.graph.record import attach, record_of
from qfunc.ops.node import kind_of
from qfunc.quantizers.fake_quantize import FakeQuantize


def float_network(model: fx.GraphModule) -> fx.GraphModule:
    """Return the float network in evaluation form: no FakeQuantize, no dropout; it shares its tensors with the model.

    Nodes keep the names that they have in the model.
    """
    return without_quantizers(evaluation_form(model))


def network_so_far(model: fx.GraphModule) -> fx.GraphModule:
    """Return the network as `float_network` does, but with the quantizers that have qparams."""
    return without_quantizers(evaluation_form(model), keep_ready=True)


@paused_collection()
def without_quantizers(form: fx.GraphModule, *, keep_ready: bool = False) -> fx.GraphModule:
    """Return a copy of an evaluation form without its quantizers and dropouts, which shares its tensors.

    Args:
        form: From `evaluation_form`.
        keep_ready: Keep the quantizers that have qparams.
    """
    graph = fx.Graph()
    graph.set_codegen(form.graph._codegen)
    env: dict[fx.Node, fx.Node] = {}
    leaves: dict[str, nn.Module] = {}
    for node in form.graph.nodes:
        if node.target is torch.detach:  # only training differs
            env[node] = env[node.all_input_nodes[0]]
            continue
        if node.op != "call_module":
            env[node] = graph.node_copy(node, env.__getitem__)
            continue
        module = form.get_submodule(str(node.target))
        quantizer = isinstance(module, FakeQuantize)
        if not (keep_ready and module.ready) if quantizer else kind_of(node) == "dropout":
            env[node] = env[node.all_input_nodes[0]]
            continue
        env[node] = graph.node_copy(node, env.__getitem__)
        leaves[str(node.target)] = in_evaluation_mode(module)
    network = CapturedModule(_Root(form, leaves), graph)
    record = record_of(form)
    return attach(network, evolve(record, stage="captured", target=None)) if record else network


class _Root(nn.Module):
    """The tensors of a model at their paths, and copies of the modules that its graph calls, in evaluation mode."""

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
    """Return True if two float networks have equal graphs and bit-equal tensors."""
    described = [[(n.op, str(n.target), str(n.args), str(n.kwargs)) for n in m.graph.nodes] for m in (a, b)]
    if described[0] != described[1]:
        return False
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)
