"""Read a captured node: its record, kind, traits, attributes and slots."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from qfunc.ops.definition import Op, Trait
from qfunc.ops.opset import BY_TARGET, MODULE_KINDS, traits_of
from qfunc.ops.sizes import NAMES_OF_NUMBERS, is_number


def op_of(node: fx.Node) -> Op | None:
    """Return the record of a captured node, or None."""
    op = BY_TARGET.get(node.target) if node.op == "call_function" else None
    return op if op and not node.kwargs and len(node.args) == len(op.parameters) else None


def kind_of(node: fx.Node) -> str:
    """Return the kind of a captured node: of its op or module, or one of "input", "constant", "output", "size",
    "unknown".

    >>> g = fx.symbolic_trace(lambda x: torch.sigmoid(x)).graph
    >>> [kind_of(n) for n in g.nodes]
    ['input', 'sigmoid', 'output']
    """
    match node.op:
        case "placeholder":
            return "input"
        case "get_attr":
            return "constant"
        case "output":
            return "output"
        case "call_module":
            module = node.graph.owning_module.get_submodule(str(node.target)) if node.graph.owning_module else None
            if getattr(module, "site", None) is not None:
                return "fake_quantize"
            return (
                MODULE_KINDS.get(type(module).__name__, "unknown")
                if type(module).__module__.startswith(("torch.", "qfunc."))
                else "unknown"
            )
    if node.target is torch.Tensor.size:
        return "size"
    op = op_of(node)
    return op.kind if op else "unknown"


def parameters_of(node: fx.Node) -> tuple[str, ...]:
    """Return the canonical parameter names of a captured node; none for a module or an unknown op."""
    op = op_of(node)
    return () if op is None else op.parameters


def attribute(node: fx.Node, name: str) -> Any:
    """Return an argument of a captured op by its canonical name."""
    op = BY_TARGET[node.target]
    return node.args[op.parameters.index(name)]


def traits(node: fx.Node) -> Trait:
    """Return the traits of a captured node: those of its op or of its kind."""
    op = op_of(node)
    return traits_of(kind_of(node)) if op is None else op.traits


def traits_of_ops(graph: fx.Graph) -> dict[fx.Node, Trait]:
    """Return the traits of every op of a captured graph."""
    return {node: traits(node) for node in graph.nodes if node.op in ("call_function", "call_module")}


def has(node: fx.Node, trait: Trait) -> bool:
    """Return True if a captured node has all of these traits.

    >>> g = fx.symbolic_trace(lambda x: torch.sigmoid(x)).graph
    >>> [has(n, Trait.NON_NEGATIVE) for n in g.nodes]
    [False, True, False]
    """
    return trait in traits(node)


def returns_several(node: fx.Node) -> bool:
    """Return True if a node returns several tensors, such as a split."""
    op = op_of(node)
    return op is not None and op.results != 1


def slots(node: fx.Node) -> list[tuple[str, fx.Node]]:
    """Return the tensors that an op reads, as (slot, producer): slots "input", "weight" and "bias", in order.

    A constant second operand of a matmul is its weight.  Modules and unknown ops read inputs only.  Sizes and numbers
    computed from sizes are no tensors.
    """
    op = op_of(node)
    if op is None:
        return [("input", n) for n in node.all_input_nodes if _is_tensor(n)]
    found: list[tuple[str, fx.Node]] = []
    for name, value in zip(op.parameters, node.args, strict=True):
        slot = op.slots.get(name)
        if slot is None:
            continue
        if slot == "operand":
            slot = "weight" if isinstance(value, fx.Node) and is_constant(value) else "input"
        entries = value if isinstance(value, list | tuple) else (value,)
        found += [(slot, v) for v in entries if isinstance(v, fx.Node) and _is_tensor(v)]
    return found


def _is_tensor(node: fx.Node) -> bool:
    # Most nodes need no search through what computes them.
    return node.op in ("placeholder", "get_attr", "call_module") or node.target in TENSORS or not is_number(node)


TENSORS = frozenset(t for t in BY_TARGET if getattr(t, "__name__", "element") not in {*NAMES_OF_NUMBERS, "element"})
"""The canonical callables whose results are tensors, whatever their operands are."""


def is_constant(node: fx.Node) -> bool:
    """Return True if a node is a parameter or buffer, perhaps after its quantizer."""
    while node.op == "call_module" and kind_of(node) == "fake_quantize":
        node = node.all_input_nodes[0]
    return node.op == "get_attr"


def channel_axis(node: fx.Node) -> int:
    """Return the axis of an op's weight that runs over output channels."""
    op = op_of(node)
    return op.weight_axis if op else 0
