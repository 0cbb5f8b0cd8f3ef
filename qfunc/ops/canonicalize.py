"""Convert a traced call in any spelling to the canonical op and its arguments."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from qfunc.ops.binding import bind
from qfunc.ops.creation import CASTS, cast_of
from qfunc.ops.definition import Call
from qfunc.ops.indexing import element
from qfunc.ops.opset import BY_NAME
from qfunc.ops.sizes import IN_PLACE_FUNCTIONS, is_number, short_name

_RENAMED = {"self": "input", "axis": "dim", "x": "input", "a": "input", "b": "other", "mat2": "other"}
_IGNORED = ("inplace", "_stacklevel", "out", "memory_format", "half_to_float", "cudnn_enable", "cudnn_enabled", "implicit")
DROPOUTS: dict[str, type[nn.Module]] = {
    "dropout": nn.Dropout,
    "dropout1d": nn.Dropout1d,
    "dropout2d": nn.Dropout2d,
    "dropout3d": nn.Dropout3d,
    "feature_dropout": nn.Dropout2d,
    "alpha_dropout": nn.AlphaDropout,
    "feature_alpha_dropout": nn.FeatureAlphaDropout,
}
"""The dropout functions, and the modules that replace them."""
_DROPOUT_INPLACE_AT = 3
_OPERATORS = (operator.and_, operator.or_, operator.not_)
"""Operators with names that end in an underscore but that do not write in place."""


def argument(node: fx.Node, index: int, *names: str) -> Any:
    """Return an argument of a traced call, by position or by one of its names; None if it is not given."""
    if len(node.args) > index:
        return node.args[index]
    return next((node.kwargs[name] for name in names if name in node.kwargs), None)


def is_in_place(node: fx.Node) -> bool:
    """Return True if a traced call writes into its first argument.

    >>> g = fx.symbolic_trace(lambda x: F.relu(x, inplace=True)).graph
    >>> [is_in_place(n) for n in g.nodes]
    [False, True, False]
    """
    name = short_name(node.op, node.target)
    if name is None or node.target in _OPERATORS:
        return False
    position = _DROPOUT_INPLACE_AT if name in DROPOUTS else BY_NAME[name].inplace_at.get(name) if name in BY_NAME else None
    if node.kwargs.get("inplace") is True or (position is not None and argument(node, position) is True):
        return not str(getattr(node.target, "__module__", "")).startswith("_operator")
    if name in IN_PLACE_FUNCTIONS:
        return not is_number(node)
    dunder = name.startswith("__") or name.endswith("__")
    return name in ("setitem", "__setitem__") or (name.endswith("_") and not dunder)


def canonical(node: fx.Node) -> Call | None:
    """Return the canonical callable and its full positional arguments, or None if no record has the op.

    >>> g = fx.symbolic_trace(lambda x: x.clamp_(max=6)).graph
    >>> canonical([*g.nodes][1])[1][1:]
    (None, 6)
    """
    name = short_name(node.op, node.target)
    if name is None:
        return None
    name = name.removesuffix("_") if is_in_place(node) or node.target in _OPERATORS else name
    args, kwargs = node.args, {_RENAMED.get(k, k): v for k, v in node.kwargs.items() if k not in _IGNORED}
    if is_number(node):
        return _size(node)
    if node.target is F.unfold:
        name = "im2col"  # the method unfold makes windows of one axis
    if name in CASTS:
        return cast_of(node, name)
    if name == "where" and node.op == "call_method" and len(args) == 3:
        args = args[1], args[0], args[2]  # x.where(condition, other)
    if name == "embedding" and node.target is not F.embedding:
        name = "aten.embedding"  # torch.embedding and aten's take the table first, torch.nn.functional's the indices
    if name == "getattr" and args[1:] in (("values",), ("indices",)):  # an entry of the results of topk and others
        return element, (args[0], ("values", "indices").index(str(args[1])))
    op = BY_NAME.get(name)
    if op is not None and name in op.rewrites:
        return op.rewrites[name](op, args[: op.inplace_at.get(name)], kwargs)
    if op is None or kwargs.pop("dtype", None) is not None:
        return None
    return bind(op, args[: len(op.parameters)] if op.ignored else args, kwargs)


def _size(node: fx.Node) -> Call | None:
    # x.shape[0], x.size()[0] and x.size(0) become one op; other arithmetic on sizes does not change.
    name = short_name(node.op, node.target)
    if name in ("size", "sym_size"):
        dim = argument(node, 1, "dim")
        return (torch.Tensor.size, (node.args[0],)) if dim is None else (torch.Tensor.size, (node.args[0], dim))
    if name == "getattr" and node.args[1] == "shape":
        return torch.Tensor.size, (node.args[0],)
    if name == "getitem":
        return element, node.args
    return (getattr(operator, name.removeprefix("i")), node.args) if name in IN_PLACE_FUNCTIONS else None
