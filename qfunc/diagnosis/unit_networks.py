"""Networks of one or two units of a network, to measure them alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen
from torch import Tensor, fx, nn

from qfunc.graph.constants import read_attr
from qfunc.ops.node import is_constant


@frozen
class UnitNetwork:
    """Some nodes of a network as a network of its own, with the values that they read in one run.

    Networks with the same `signature` compute the same ops with the same arguments on tensors of the same sizes.
    """

    module: nn.Module = field(eq=False, repr=False)
    inputs: tuple[Tensor, ...] = field(eq=False, repr=False)
    signature: str
    elements: int = field(eq=False)
    """The elements of the output."""


def unit_network(network: fx.GraphModule, nodes: Sequence[fx.Node], values: Mapping[str, Any]) -> UnitNetwork | None:
    """Return the network of some nodes, whose last is its output; None if they read or write other values than tensors.

    Args:
        network: The network.
        nodes: The nodes, in its order.
        values: The values of its nodes by name.
    """
    result = values.get(nodes[-1].name)
    if not isinstance(result, Tensor):
        return None
    root, graph = nn.Module(), fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    words: dict[fx.Node, str] = {}
    inputs: list[Tensor] = []

    given = dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in nodes)
    for node in given:
        if is_constant(node):
            name, tensor = f"constant_{len(copies)}", read_attr(network, node)
            root.register_buffer(name, tensor.detach())
            copies[node], words[node] = graph.get_attr(name), f"constant {tuple(tensor.shape)} {tensor.dtype}"
            continue
        value = values.get(node.name)
        if not isinstance(value, Tensor):
            return None
        copies[node] = graph.placeholder(f"x{len(inputs)}")
        words[node] = f"x{len(inputs)} {tuple(value.shape)} {value.dtype}"
        inputs.append(value)
    for node in nodes:
        copies[node], words[node] = graph.node_copy(node, lambda n: copies[n]), _text(node, words)
    graph.output(copies[nodes[-1]])
    return UnitNetwork(fx.GraphModule(root, graph), tuple(inputs), words[nodes[-1]], result.numel())


def _text(node: fx.Node, words: Mapping[fx.Node, str]) -> str:
    # The op with its arguments, in which nodes are texts.
    arguments = fx.map_arg((node.args, node.kwargs), lambda n: words[n])
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__qualname__", repr(node.target))
    return f"{name}{arguments}"
