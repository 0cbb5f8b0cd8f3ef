"""Access to the nodes of a torch.export graph by their aten names."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx


def aten(node: Any) -> str:
    """Return the bare name of an aten op, or "" for any other node.

    >>> [aten(n) for n in torch.export.export(torch.nn.ReLU(), (torch.ones(2),)).graph.nodes]
    ['', 'relu', '']
    """
    target = getattr(node, "target", None)
    space, _, name = str(target).partition(".") if isinstance(target, torch._ops.OpOverload) else ("", "", "")
    return name.partition(".")[0] if space == "aten" else ""


class AtenReader:
    """Reads core ATen ops for the matcher: names without overload, operands by the parameters of the schema."""

    def kind(self, node: fx.Node) -> str:
        """Return the name of an op, or "first of NAME" for the first of several results if no node reads the others."""
        if node.op != "call_function" or node.target is not operator.getitem:
            return aten(node)
        source = node.args[0]
        alone = isinstance(source, fx.Node) and all(u.target is operator.getitem and u.args[1] == 0 for u in source.users)
        return f"first of {aten(source)}" if alone else ""

    def operands(self, node: fx.Node) -> dict[str, Any]:
        """Return the operands by the names of the schema, with defaults; for a first result those of the op it comes from.

        >>> _, elu, _ = torch.export.export(torch.nn.ELU(), (torch.ones(2),)).graph.nodes
        >>> ATEN.operands(elu)
        {'self': input, 'alpha': 1.0, 'scale': 1, 'input_scale': 1}
        """
        source: Any = node.args[0] if node.target is operator.getitem else node
        if not isinstance(source.target, torch._ops.OpOverload):
            return {}
        parameters = source.target._schema.arguments
        given = {**dict(zip((p.name for p in parameters), source.args, strict=False)), **source.kwargs}
        return {p.name: given.get(p.name, p.default_value) for p in parameters}


ATEN = AtenReader()


def shape(node: Any) -> tuple[str, ...] | None:
    """Return the sizes of a node's tensor as strings, dynamic sizes included; None if they are unknown.

    >>> [shape(n) for n in torch.export.export(torch.nn.ReLU(), (torch.ones(2),)).graph.nodes]
    [('2',), ('2',), None]
    """
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return tuple(map(str, value.shape)) if isinstance(value, torch.Tensor) else None


def is_constant(node: Any) -> bool:
    """Return True if a node reads a parameter or buffer, directly or through ops of one operand each."""
    while isinstance(node, fx.Node) and node.op == "call_function" and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return isinstance(node, fx.Node) and node.op == "get_attr"
