"""Quantizer nodes: the FakeQuantize modules of a graph, with their producers and readers."""

from __future__ import annotations

from attrs import frozen
from torch import fx

from qfunc.graph.evaluation_form import evaluation_form
from qfunc.ops.node import kind_of
from qfunc.quantizers.fake_quantize import FakeQuantize

__all__ = ["QuantizerNode", "quantizer_nodes"]


@frozen
class QuantizerNode:
    """A FakeQuantize in a model: where it sits, the float node whose value it quantizes, and who reads that.

    Both are named as in `float_network`: dropouts are looked through.
    """

    path: str
    module: FakeQuantize
    tensor: str
    readers: tuple[str, ...]


def quantizer_nodes(model: fx.GraphModule) -> tuple[QuantizerNode, ...]:
    """Every FakeQuantize of a model in graph order."""
    model, found = evaluation_form(model), []
    for node in model.graph.nodes:
        if kind_of(node) == "fake_quantize":
            module = model.get_submodule(str(node.target))
            assert isinstance(module, FakeQuantize)
            tensor = node.all_input_nodes[0]
            while kind_of(tensor) == "dropout":
                tensor = tensor.all_input_nodes[0]
            found.append(QuantizerNode(str(node.target), module, tensor.name, tuple(_readers(node))))
    return tuple(found)


def _readers(node: fx.Node) -> list[str]:
    return [name for user in node.users for name in (_readers(user) if kind_of(user) == "dropout" else [user.name])]
