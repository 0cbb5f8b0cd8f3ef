"""Numbers that a traced model computes from sizes: axes from the end, starts of slices, numbers known by value."""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from qfunc.errors import CaptureError
from qfunc.frontend.source_location import source_line
from qfunc.ops.activation import between
from qfunc.ops.binding import named
from qfunc.ops.definition import Call, Trait
from qfunc.ops.opset import BY_NAME, BY_TARGET
from qfunc.ops.sizes import is_number, short_name

_USE_EXPORT = "Give example_inputs=(...,), so that the model is captured by torch.export, which knows the sizes."
_RANKS = ("dim", "ndimension", "ndim")


def count_axes_from_the_end(traced: fx.Graph) -> None:
    """Replace the axes of means, such as x.dim() - 1, by -1, in place: the mean over an image is an op of its own.

    >>> g = fx.symbolic_trace(lambda x: x.mean((x.ndim - 2, x.ndim - 1))).graph
    >>> count_axes_from_the_end(g)
    >>> [n.args[1] for n in g.nodes if n.name == "mean"]
    [(-2, -1)]
    """
    for node in (n for n in traced.nodes if n.all_input_nodes[1:]):
        op = BY_NAME.get(short_name(node.op, node.target) or "")
        if op is not None and Trait.AVERAGES in op.traits:
            node.args = (node.args[0], *(_from_the_end(v, node) for v in node.args[1:]))
            node.kwargs = {k: _from_the_end(v, node) for k, v in node.kwargs.items()}


def _from_the_end(axis: Any, reader: fx.Node) -> Any:
    if isinstance(axis, list | tuple):
        return tuple(_from_the_end(a, reader) for a in axis)
    if not isinstance(axis, fx.Node) or axis.target is not operator.sub:
        return axis
    rank, back = axis.args
    named = isinstance(rank, fx.Node) and (short_name(rank.op, rank.target) in _RANKS or rank.args[1:] in (("ndim",),))
    same = named and rank.args[0] is reader.args[0]  # type: ignore[union-attr]
    return -back if same and isinstance(back, int) and back > 0 else axis


def slice_narrowed(traced: fx.Graph) -> None:
    """Replace x.narrow(dim, start, length) by x[..., start:][..., :length], in place, unless start is a number from 0 on.

    >>> g = fx.symbolic_trace(lambda x: x.narrow(0, x.size(0) // 2, 1)).graph
    >>> slice_narrowed(g)
    >>> [str(n) for n in g.nodes if n.target is operator.getitem]
    ['getitem', 'narrow']
    """
    for node in [n for n in traced.nodes if short_name(n.op, n.target) == "narrow"]:
        given = named("input dim start length", node.args, dict(node.kwargs))
        x = given.get("input", given.get("self"))
        dim, start, length = (given.get(name) for name in ("dim", "start", "length"))
        known = isinstance(start, int) and start >= 0 and (start == 0 or isinstance(length, int))
        if known or not isinstance(dim, int) or not (isinstance(start, int) or is_number(start)):
            continue
        with traced.inserting_before(node):
            rest = traced.call_function(operator.getitem, (x, _along(dim, slice(start, None))))
        rest.meta = dict(node.meta)
        node.op, node.target = "call_function", operator.getitem
        node.args, node.kwargs = (rest, _along(dim, slice(0, length))), {}


def _along(dim: int, part: slice) -> tuple[Any, ...]:
    whole = slice(None)
    return (..., part, *(whole,) * (-dim - 1)) if dim < 0 else (*(whole,) * dim, part)


def require_known_numbers(node: fx.Node, call: Call | None) -> None:
    """Refuse numbers computed from sizes where they decide how an op is quantized, or where no op of qfunc takes them.

    Raises:
        CaptureError: the message names the op and torch.export, which knows the sizes.
    """
    op = None if call is None else BY_TARGET.get(call[0])
    if call is None:
        read = node.all_input_nodes if node.op == "call_function" and node.users else ()
        if read and all(map(is_number, read)) and short_name(node.op, node.target) is not None and not is_number(node):
            raise _error(
                node, f"{short_name(node.op, node.target)} of numbers computed from sizes", "an op of tensors, or one of qfunc"
            )
    elif op is not None and (op.traits & (Trait.WEIGHTED | Trait.ACTIVATION) or op.call is between):
        given = zip(op.parameters, call[1], strict=True)
        names = [n for n, v in given if isinstance(v, fx.Node | list | tuple) and v and _has_number(v)]
        if names:
            found = f"{short_name(node.op, node.target)} with {' and '.join(names)} computed from sizes"
            raise _error(node, found, "numbers that capture knows")


def _has_number(value: Any) -> bool:
    found: list[fx.Node] = []
    fx.map_arg(value, found.append)
    return any(map(is_number, found))


def _error(node: fx.Node, found: str, wanted: str) -> CaptureError:
    return CaptureError(where=source_line(node) or f"node {node.name!r}", found=found, wanted=wanted, do=_USE_EXPORT)
