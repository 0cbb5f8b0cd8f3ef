"""Access to the nodes of a torch.export graph by their aten names."""

from __future__ import annotations

from typing import Any

import torch
from attrs import field, frozen
from torch import fx


@frozen(eq=False)
class Call:
    """A call that takes the place of others."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(factory=dict)


def aten(node: Any) -> str:
    """Return the bare name of an aten op, or "" for any other node.

    >>> [aten(n) for n in torch.export.export(torch.nn.ReLU(), (torch.ones(2),)).graph.nodes]
    ['', 'relu', '']
    """
    target = getattr(node, "target", None)
    space, _, name = str(target).partition(".") if isinstance(target, torch._ops.OpOverload) else ("", "", "")
    return name.partition(".")[0] if space == "aten" else ""


def arg(node: fx.Node, place: int, default: Any = None) -> Any:
    """An argument by position; torch.export leaves defaults out."""
    return args(node)[place] if len(node.args) > place else default


def args(node: Any) -> tuple[Any, ...]:
    """The arguments of a call."""
    return tuple(node.args)


def shape(node: Any) -> tuple[str, ...] | None:
    """Return the sizes of a node's tensor as strings, dynamic sizes included; None if they are unknown.

    >>> [shape(n) for n in torch.export.export(torch.nn.ReLU(), (torch.ones(2),)).graph.nodes]
    [('2',), ('2',), None]
    """
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return tuple(map(str, value.shape)) if isinstance(value, torch.Tensor) else None


def read(node: Any, name: str) -> tuple[Any, ...]:
    """The arguments of an op of that name; () of anything else.

    >>> _, relu, _ = torch.export.export(torch.nn.ReLU(), (torch.ones(2),)).graph.nodes
    >>> read(relu, "relu"), read(relu, "tanh")
    ((input,), ())
    """
    return tuple(node.args) if aten(node) == name else ()


def behind(node: Any, *names: str) -> Any:
    """What ops of these names, which leave the values as they are, read in the end."""
    while aten(node) in names:
        node = node.args[0]
    return node


def is_constant(node: Any) -> bool:
    """Return True if a node reads a parameter or buffer, directly or through ops of one operand each."""
    while isinstance(node, fx.Node) and node.op == "call_function" and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return isinstance(node, fx.Node) and node.op == "get_attr"


__all__ = ["Call", "arg", "args", "aten", "behind", "is_constant", "read", "shape"]
