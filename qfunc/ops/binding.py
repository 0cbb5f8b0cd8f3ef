"""Bind the arguments of a traced call to a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from qfunc.ops.definition import EMPTY, Call, Op, Rewrite


def bind(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """Return the canonical call of an op, every parameter by position; None if the arguments do not fit."""
    try:
        bound = op.signature.bind(*args, **kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    given = tuple(bound.arguments.values())
    return None if EMPTY in map(type, given) else (op.call, given)


def named(names: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by name; positional ones beyond the names are dropped.

    >>> named("input dim", (1, 2, 3), {"keepdim": True})
    {'input': 1, 'dim': 2, 'keepdim': True}
    """
    return dict(zip(names.split(), args, strict=False)) | kwargs


def exactly(names: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments by name; None if there are any other arguments.

    >>> exactly("input dim", (1,), {"keepdim": True}) is None
    True
    """
    words = names.split()
    return None if len(args) > len(words) or not set(kwargs) <= set(words) else named(names, args, kwargs)


def dims_of(value: Any) -> Any:
    """Return one axis or several as a tuple; None for anything else.

    >>> dims_of(1), dims_of([1, 2]), dims_of(None)
    ((1,), (1, 2), None)
    """
    return (value,) if isinstance(value, int) else tuple(value) if isinstance(value, list | tuple) else None


def dtype_of(node: Any) -> torch.dtype | None:
    """Return the dtype of a traced tensor if torch.export recorded it, else None.

    >>> dtype_of(3.0) is None
    True
    """
    return getattr(node.meta.get("val"), "dtype", None) if isinstance(node, fx.Node) else None


def is_sizes(value: Any) -> bool:
    """Return True if a traced value is several sizes: a shape, a slice of one, or a sum of shapes and tuples.

    >>> [is_sizes(n) for n in fx.symbolic_trace(lambda x: x.view(x.shape[:-1] + (2, 3))).graph.nodes]
    [False, True, True, True, False, False]
    """
    if not isinstance(value, fx.Node):
        return False
    known, pending = dict[fx.Node, bool](), [value]
    while pending:  # each node once: a residual network has 2^depth ways to its first ops
        node = pending[-1]
        if missing := [n for n in _operands(node) if isinstance(n, fx.Node) and n not in known]:
            pending.extend(missing)
        else:
            known[pending.pop()] = _of_operands(node, [isinstance(n, fx.Node) and known[n] for n in _operands(node)])
    return known[value]


def _operands(node: fx.Node) -> Sequence[Any]:
    # The arguments that decide whether an op computes several sizes.
    return node.args if getattr(node.target, "__name__", "") in ("mul", "add", "getitem") else ()


def _of_operands(node: fx.Node, sizes: list[bool]) -> bool:
    if node.op == "call_method":
        return node.target == "size" and len(node.args) == 1 and not node.kwargs
    name = getattr(node.target, "__name__", "")
    several = [isinstance(v, list | tuple) or of for v, of in zip(node.args, sizes, strict=False)]
    if name == "mul":  # (1,) * (x.dim() - 2)
        return any(several)
    if name == "add":
        return any(sizes) and all(several)
    if name == "getitem":
        return isinstance(node.args[1], slice) and sizes[0]
    return name == "getattr" and node.args[1:] == ("shape",)


def pair(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """Bind the two operands of a comparison or of a logical op."""
    given = (*args, *(kwargs[k] for k in ("input", "other") if k in kwargs))
    return (op.call, given) if len(given) == 2 else None


def all_axes_or_some(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """Bind sum(x) and sum(x, dim): `dim` is None for all axes."""
    given = exactly("input dim keepdim", args, kwargs)
    return None if given is None else (op.call, (given["input"], given.get("dim"), given.get("keepdim", False)))


def axes(name: str) -> Rewrite:
    """Return a rewrite that binds flip(0, 1) and flip((0, 1)) alike; `name` is the keyword of the axes."""

    def rewrite(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        rest: Any = kwargs.get(name, args[1] if len(args) == 2 else args[1:])
        one = isinstance(rest, int | fx.Node)
        dims = rest if is_sizes(rest) else (rest,) if one else tuple(rest)
        return (op.call, (kwargs.get("input", *args[:1]), dims)) if dims else None

    return rewrite


def varargs(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """Bind view(2, 3), view((2, 3)) and view(y.shape) alike."""
    if len(args) > 1:
        given = args[1] if len(args) == 2 and (isinstance(args[1], list | tuple) or is_sizes(args[1])) else args[1:]
    else:
        given = next((kwargs[k] for k in ("size", "shape", "dims") if k in kwargs), ())
    if is_sizes(given):
        return op.call, (kwargs.get("input", *args[:1]), given)
    if not isinstance(given, list | tuple) or not given or any(isinstance(v, torch.dtype) for v in given):
        return None
    return op.call, (kwargs.get("input", *args[:1]), tuple(given))
