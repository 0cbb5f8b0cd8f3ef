"""The quantizers of a graph, each with the tensor that it quantizes and the ops that read its value."""

from __future__ import annotations

from attrs import frozen
from torch import fx

from qfunc.graph.evaluation_form import evaluation_form
from qfunc.ops.node import kind_of
from qfunc.quantizers.fake_quantize import FakeQuantize


@frozen
class QuantizerNode:
    """A FakeQuantize: its path in the model, the node that it quantizes, and the nodes that read its value.

    The nodes are given by their names in `float_network`, which has no dropouts.
    """

    path: str
    module: FakeQuantize
    tensor: str
    readers: tuple[str, ...]


def quantizer_nodes(model: fx.GraphModule) -> tuple[QuantizerNode, ...]:
    """Return the quantizers of a model in the order of its graph."""
    return find_quantizers(evaluation_form(model))


def find_quantizers(form: fx.GraphModule) -> tuple[QuantizerNode, ...]:
    """Return the quantizers of an evaluation form in the order of its graph."""
    found = []
    for node in form.graph.nodes:
        module = form.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(module, FakeQuantize):
            tensor = node.all_input_nodes[0]
            while _is_dropout(tensor):
                tensor = tensor.all_input_nodes[0]
            found.append(QuantizerNode(str(node.target), module, tensor.name, tuple(_readers(node))))
    return tuple(found)


def _readers(node: fx.Node) -> list[str]:
    return [name for user in node.users for name in (_readers(user) if _is_dropout(user) else [user.name])]


def _is_dropout(node: fx.Node) -> bool:
    return node.op == "call_module" and kind_of(node) == "dropout"
