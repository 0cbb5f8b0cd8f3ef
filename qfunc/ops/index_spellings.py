"""Spellings of ops on positions, masks and types: each becomes one canonical call, without device and layout."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from qfunc.ops.index_ops import arange, cast, cast_like, cumsum, dense, difference, full, full_like, index
from qfunc.ops.indexing import Call, Rewrite

_METHODS = {
    "float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16, "long": torch.int64,
    "int": torch.int32, "short": torch.int16, "char": torch.int8, "byte": torch.uint8, "bool": torch.bool,
}  # fmt: skip
CASTS = ("to", "_to_copy", "type", "type_as", *_METHODS)
"""Short names of ops that change the type of a tensor."""


def dtype_of(node: Any) -> torch.dtype | None:
    """The type of a traced tensor, where torch.export recorded it.

    >>> dtype_of(3.0) is None
    True
    """
    return getattr(node.meta.get("val"), "dtype", None) if isinstance(node, fx.Node) else None


def cast_of(node: fx.Node, name: str) -> Call | None:
    """The cast that a traced call is; None where its type is not told (a move to another device)."""
    given = [v for v in (*node.args[1:], *node.kwargs.values()) if isinstance(v, torch.dtype)]
    method = _METHODS.get(name) if node.op == "call_method" else None
    wanted = dtype_of(node) or method or next(iter(given), None)
    if wanted is None and (like := _like(node, name)) is not None:
        return cast_like, (node.args[0], like)
    return None if wanted is None or not node.args else (cast, (node.args[0], wanted))


def _like(node: fx.Node, name: str) -> fx.Node | None:
    # x.type_as(y), x.to(y.dtype): the type is known when it runs.
    value = node.args[1] if len(node.args) > 1 else node.kwargs.get("dtype", node.kwargs.get("other"))
    if not isinstance(value, fx.Node):
        return None
    if getattr(value.target, "__name__", "") == "getattr":
        return value.args[0] if value.args[1] == "dtype" and isinstance(value.args[0], fx.Node) else None
    return value if name == "type_as" else None


def casts_nothing(node: fx.Node, name: str) -> bool:
    """Whether a cast is known to leave its tensor as it is."""
    wanted = dtype_of(node)
    return name in CASTS and wanted is not None and bool(node.args) and dtype_of(node.args[0]) == wanted


def _pair(target: Any) -> Rewrite:
    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        given = (*args, *(kwargs[k] for k in ("input", "other") if k in kwargs))
        return (target, given) if len(given) == 2 else None

    return rewrite


def _masked_fill(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = dict(zip(("input", "mask", "value"), args, strict=False)) | kwargs
    return torch.where, (given["mask"], given["value"], given["input"])


def _arange(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = dict(zip(("end",) if len(args) == 1 else ("start", "end", "step"), args, strict=False)) | kwargs
    return arange, (given.get("start", 0), given["end"], given.get("step", 1), kwargs.get("dtype"), None)


def _filled(value: Any, *, like: bool = False) -> Rewrite:
    """zeros, ones and full, and those that take a tensor first and have its type (`like`)."""

    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        rest = list(args[1:] if like else args)
        shape = kwargs.get("size")
        if shape is None:
            shape = rest.pop(0) if rest and (isinstance(rest[0], list | tuple) or is_sizes(rest[0])) else None
        if shape is None:
            shape, rest = rest, []
        filled = value if value is not None else kwargs.get("fill_value", rest[0] if rest else None)
        dtype = kwargs.get("dtype")
        if dtype is None and not like:
            kinds = {bool: torch.bool, int: torch.int64, float: torch.get_default_dtype()}
            dtype = torch.get_default_dtype() if value is not None else kinds.get(type(filled))
        if filled is None or (dtype is None and not like):
            return None
        return full, (tuple(shape) if isinstance(shape, list | tuple) else shape, filled, dtype, args[0] if like else None)

    return rewrite


def is_sizes(value: Any) -> bool:
    """Whether a traced value is several sizes: x.shape, x.size(), a slice of it, a repeated tuple, a sum of such and of tuples.

    >>> [is_sizes(n) for n in fx.symbolic_trace(lambda x: x.view(x.shape[:-1] + (2, 3))).graph.nodes]
    [False, True, True, True, False, False]
    """
    if not isinstance(value, fx.Node):
        return False
    if value.op == "call_method":
        return value.target == "size" and len(value.args) == 1 and not value.kwargs
    name = getattr(value.target, "__name__", "")
    several = [isinstance(v, list | tuple) or is_sizes(v) for v in value.args]
    if name == "mul":  # (1,) * (x.dim() - 2)
        return any(several)
    if name == "add":
        return any(map(is_sizes, value.args)) and all(several)
    if name == "getitem":
        return isinstance(value.args[1], slice) and is_sizes(value.args[0])
    return name == "getattr" and value.args[1:] == ("shape",)


def _filled_like(value: Any) -> Rewrite:
    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        filled = value if value is not None else kwargs.get("fill_value", args[1] if len(args) > 1 else None)
        return full_like, (kwargs.get("input", args[0] if args else None), filled, kwargs.get("dtype"))

    return rewrite


def _index(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    # Indices that are masks give a result whose size depends on values: no canonical op.
    indices = tuple(args[1])
    return None if any(dtype_of(i) in (torch.bool, torch.uint8) for i in indices) else (index, (args[0], indices))


def _index_select(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = dict(zip(("input", "dim", "index"), args, strict=False)) | kwargs
    if not isinstance(given["dim"], int) or given["dim"] < 0:
        return None
    return index, (given["input"], (*(None,) * given["dim"], given["index"]))


def _cumsum(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = dict(zip(("input", "dim", "dtype"), args, strict=False)) | kwargs
    return cumsum, (given["input"], given["dim"], given.get("dtype"))


def _diff(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = dict(zip(("input", "n", "dim", "prepend", "append"), args, strict=False)) | kwargs
    if given.get("n", 1) != 1 or given.get("append") is not None:
        return None
    return difference, (given["input"], given.get("dim", -1), given.get("prepend"))


def _addmm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = dict(zip(("input", "mat1", "other"), args, strict=False)) | kwargs
    held = [given.get(k) for k in ("input", "other")]
    plain = given.get("beta", 1) == 1 and given.get("alpha", 1) == 1
    if not plain or any(getattr(v, "op", "") != "get_attr" for v in held):
        return None
    return dense, (given["mat1"], given["other"], given["input"])


def _repeat(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = kwargs.get("repeats", args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:])
    return (torch.Tensor.repeat, (args[0], tuple(given))) if given else None


def _roll(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = dict(zip(("input", "shifts", "dims"), args, strict=False)) | kwargs
    each = [(v,) if isinstance(v, int) else tuple(v or ()) for v in (given["shifts"], given.get("dims"))]
    return (torch.roll, (given["input"], *each)) if each[1] else None


INDEX_REWRITES: dict[str, Rewrite] = {
    "masked_fill": _masked_fill,
    "arange": _arange,
    "zeros": _filled(0.0),
    "ones": _filled(1.0),
    "full": _filled(None),
    "new_zeros": _filled(0, like=True),
    "new_ones": _filled(1, like=True),
    "new_full": _filled(None, like=True),
    "zeros_like": _filled_like(0),
    "ones_like": _filled_like(1),
    "full_like": _filled_like(None),
    "index": _index,
    "index_select": _index_select,
    "cumsum": _cumsum,
    "diff": _diff,
    "addmm": _addmm,
    "repeat": _repeat,
    "roll": _roll,
    **{
        name: _pair(target)
        for target, names in (
            (torch.ge, ("ge", "greater_equal")),
            (torch.gt, ("gt", "greater")),
            (torch.le, ("le", "less_equal")),
            (torch.lt, ("lt", "less")),
            (torch.eq, ("eq",)),
            (torch.ne, ("ne", "not_equal")),
            (torch.bitwise_and, ("bitwise_and", "and", "__and__", "iand", "__iand__")),
            (torch.bitwise_or, ("bitwise_or", "or", "__or__", "ior", "__ior__")),
            (torch.bitwise_xor, ("bitwise_xor", "xor", "__xor__", "ixor", "__ixor__")),
            (torch.logical_and, ("logical_and",)),
            (torch.logical_or, ("logical_or",)),
        )
        for name in names
    },
}
"""The rewrites of this file, by short name."""

OPERATORS = (operator.and_, operator.or_, operator.not_)
"""Operators whose names end in an underscore, and which write nowhere."""
