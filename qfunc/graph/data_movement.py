"""Ops that only move codes: their output has the qparams of their input."""

from __future__ import annotations

from torch import fx

from qfunc.graph.selectors import Context, matches
from qfunc.ops.indexing import element
from qfunc.ops.node import attribute, kind_of, op_of, slots
from qfunc.ops.sizes import is_number
from qfunc.specs import Target

TRANSPARENT = ("dropout", "detach")
"""Kinds that are removed in evaluation, for every target: they differ in training only."""


def reads_values(reader: fx.Node, tensor: fx.Node) -> bool:
    """Return True if an op reads the values of a tensor, not only its size, dtype or device.

    >>> import torch
    >>> graph = fx.Graph()
    >>> x = graph.placeholder("x")
    >>> reads_values(graph.call_function(torch.Tensor.size, (x, 0)), x)
    False
    """
    op = op_of(reader)
    if op is None:  # such as tensor.dim()
        return not (reader.op.startswith("call") and is_number(reader))
    names = {name for name, value in zip(op.parameters, reader.args, strict=True) if value is tensor}
    return kind_of(reader) != "size" and names != {"like"}


def value_readers(tensor: fx.Node) -> dict[fx.Node, tuple[fx.Node, ...]]:
    """Return the ops that read the values of a tensor in evaluation, each with the dropouts and detached copies before it.

    >>> from qfunc.frontend.capture import capture
    >>> from torch import nn
    >>> model = capture()(nn.Sequential(nn.Sigmoid(), nn.Dropout(), nn.ReLU()))
    >>> value_readers(list(model.graph.nodes)[1])
    {_2: (_1,)}
    """
    found: dict[fx.Node, tuple[fx.Node, ...]] = {}
    pending: list[tuple[fx.Node, tuple[fx.Node, ...]]] = [(tensor, ())]
    while pending:
        current, passed = pending.pop()
        for user in current.users:
            if kind_of(user) in TRANSPARENT:
                pending.append((user, (*passed, user)))
            elif reads_values(user, current):
                found.setdefault(user, passed)
    return found


def moved_input(node: fx.Node) -> fx.Node:
    """Return the input whose codes an op moves."""
    return next(n for s, n in slots(node) if s == "input")


def movement_chain(source: fx.Node, last: fx.Node) -> list[fx.Node]:
    """Return the ops that move the codes of `source` to `last`, in reverse order."""
    chain = []
    while last is not source:
        chain.append(last)
        last = moved_input(last)
    return chain


def commutes(node: fx.Node, context: Context, target: Target) -> bool:
    """Return True if a target says that an op only moves codes; `only_moves_codes` asks for its arguments.

    >>> from qfunc import targets
    >>> from qfunc.frontend.capture import capture
    >>> from torch import nn
    >>> model = capture()(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()))
    >>> [n.name for n in model.graph.nodes if commutes(n, Context(model), targets.onnxruntime)]
    ['_1']
    """
    return target.commuting is not None and matches(target.commuting, node, context)


def keeps_codes(node: fx.Node, context: Context, target: Target) -> bool:
    """Return True if an op has the codes of its input: it is removed in evaluation, or commutes."""
    return context.kind(node) in TRANSPARENT or commutes(node, context, target)


def only_moves_codes(node: fx.Node) -> bool:
    """Return True if an op of a commuting kind only moves codes; padding by a value other than 0 does not."""
    if node.op != "call_function":
        return True
    match kind_of(node):
        case "pad":
            return attribute(node, "mode") != "constant" or not attribute(node, "value")
        case "resize":
            return str(attribute(node, "mode")).startswith("nearest")
        case "slice":
            return not indexes_tuple(node)
    return True


def indexes_tuple(node: fx.Node) -> bool:
    """Return True if an index may select one of several results; an op outside the vocabulary may have any number.

    >>> import operator
    >>> graph = fx.Graph()
    >>> several = graph.call_function(divmod, (graph.placeholder("x"), 2))
    >>> indexes_tuple(graph.call_function(operator.getitem, (several, 0)))
    True
    """
    while kind_of(node) == "slice" and isinstance(attribute(node, "index"), int):
        node = attribute(node, "input")
        if kind_of(node) == "unknown":
            return node.target is not element or isinstance(node.args[1], str)
    return False
