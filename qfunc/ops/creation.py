"""Tensors that a model creates itself, and changes of dtype.

Tensors that a model creates (positions, masks) are on the device of its first input, `like`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from qfunc.ops.binding import dtype_of, is_sizes
from qfunc.ops.definition import Call, Op, Rewrite, Trait, op


def cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the values in another dtype, on the same device.

    >>> cast(torch.tensor([0, 2]), torch.bool)
    tensor([False,  True])
    """
    return value.to(dtype)


def cast_like(value: Tensor, like: Tensor) -> Tensor:
    """Return the values in the dtype of another tensor.

    >>> cast_like(torch.tensor([2]), torch.zeros(1))
    tensor([2.])
    """
    return value.to(like.dtype)


def arange(start: int | float, end: int | float, step: int | float, dtype: torch.dtype | None, like: Tensor | None) -> Tensor:
    """Call `torch.arange` on the device of `like`.

    >>> arange(1, 6, 2, None, torch.zeros(1))
    tensor([1, 3, 5])
    """
    return torch.arange(start, end, step, dtype=dtype, device=None if like is None else like.device)


def full(shape: Sequence[int], value: bool | int | float, dtype: torch.dtype | None, like: Tensor | None) -> Tensor:
    """Call `torch.full` on the device of `like`, in its dtype if `dtype` is None.

    >>> full((2,), 1, torch.bool, None), full((1,), 3, None, torch.zeros(4))
    (tensor([True, True]), tensor([3.]))
    """
    if like is None:
        return torch.full(tuple(shape), value, dtype=dtype)
    return torch.full(tuple(shape), value, dtype=like.dtype if dtype is None else dtype, device=like.device)


def full_like(like: Tensor, value: bool | int | float, dtype: torch.dtype | None) -> Tensor:
    """Return a tensor of one value in the shape of another.

    >>> full_like(torch.zeros(2, dtype=torch.int64), 7, None)
    tensor([7, 7])
    """
    return torch.full_like(like, value, dtype=dtype)


_METHODS = {
    "float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16, "long": torch.int64,
    "int": torch.int32, "short": torch.int16, "char": torch.int8, "byte": torch.uint8, "bool": torch.bool,
}  # fmt: skip
CASTS = ("to", "_to_copy", "type", "type_as", *_METHODS)
"""Short names of ops that change the type of a tensor."""


def cast_of(node: fx.Node, name: str) -> Call | None:
    """Return a traced cast as a canonical call; None if its dtype is not known (a move to another device)."""
    given = [v for v in (*node.args[1:], *node.kwargs.values()) if isinstance(v, torch.dtype)]
    method = _METHODS.get(name) if node.op == "call_method" else None
    wanted = dtype_of(node) or method or next(iter(given), None)
    if wanted is None and (like := _like(node, name)) is not None:
        return cast_like, (node.args[0], like)
    return None if wanted is None or not node.args else (cast, (node.args[0], wanted))


def _like(node: fx.Node, name: str) -> fx.Node | None:
    # x.type_as(y), x.to(y.dtype), x.to(y): the dtype is known only at run time.
    value = node.args[1] if len(node.args) > 1 else node.kwargs.get("dtype", node.kwargs.get("other"))
    if not isinstance(value, fx.Node):
        return None
    if getattr(value.target, "__name__", "") == "getattr":
        return value.args[0] if value.args[1] == "dtype" and isinstance(value.args[0], fx.Node) else None
    return value if name in ("to", "type_as") else None


def casts_nothing(node: fx.Node, name: str) -> bool:
    """Return True if a cast is known not to change its tensor."""
    wanted = dtype_of(node)
    return name in CASTS and wanted is not None and bool(node.args) and dtype_of(node.args[0]) == wanted


def only_moves(node: fx.Node, name: str) -> bool:
    """Return True if a traced call only moves its tensor to a device, on which a captured model computes if its inputs are
    there, or in memory.
    """
    if name in ("cpu", "cuda"):
        return True
    given = (*node.args[1:], *(v for k, v in node.kwargs.items() if k not in ("non_blocking", "copy", "memory_format")))
    return name == "to" and (not given or (len(given) == 1 and _is_device(given[0])))


def _is_device(value: Any) -> bool:
    if isinstance(value, fx.Node):
        return getattr(value.target, "__name__", "") == "getattr" and value.args[1] == "device"
    return isinstance(value, str | torch.device)


def _arange(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = dict(zip(("end",) if len(args) == 1 else ("start", "end", "step"), args, strict=False)) | kwargs
    if isinstance(kwargs.get("dtype"), fx.Node) and any(isinstance(v, float) for v in args):
        return None  # an integer dtype, which is known at run time only, would round the ends and the step
    return op.call, (given.get("start", 0), given["end"], given.get("step", 1), kwargs.get("dtype"), None)


def _filled(value: Any, *, like: bool = False) -> Rewrite:
    # zeros, ones and full, and the variants with a tensor as first argument, which use its dtype (`like`).
    def rewrite(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
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
        return op.call, (tuple(shape) if isinstance(shape, list | tuple) else shape, filled, dtype, args[0] if like else None)

    return rewrite


def _filled_like(value: Any) -> Rewrite:
    def rewrite(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        filled = value if value is not None else kwargs.get("fill_value", args[1] if len(args) > 1 else None)
        return op.call, (kwargs.get("input", args[0] if args else None), filled, kwargs.get("dtype"))

    return rewrite


_CREATES = Trait.CREATES | Trait.POSITION_IF_INPUTS

ROWS: tuple[Op, ...] = (
    op("cast", cast, "value dtype", "cast", traits=Trait.ELEMENTWISE | Trait.POSITION_IF_INPUTS | Trait.KEEPS_LOW,
       example=lambda x: cast(x, torch.float64)),
    op("cast", cast_like, "value like", traits=Trait.ELEMENTWISE | Trait.POSITION_IF_INPUTS | Trait.KEEPS_LOW,
       example=lambda x: cast_like(x, torch.zeros(1, dtype=torch.float64))),
    op("arange", arange, "start end step=1 dtype=None like=None", rewrites={"arange": _arange},
       traits=_CREATES | Trait.NEVER_BOOLEAN, example=lambda x: arange(-1.5, 3.0, 1, None, x)),
    op("full", full, "shape value dtype=None like=None", traits=_CREATES,
       rewrites={"zeros": _filled(0.0), "ones": _filled(1.0), "full": _filled(None), "new_zeros": _filled(0, like=True),
                 "new_ones": _filled(1, like=True), "new_full": _filled(None, like=True)},
       example=lambda x: full((2, 3), -1.5, None, x)),
    op("full", full_like, "like value dtype=None", traits=_CREATES,
       rewrites={"zeros_like": _filled_like(0), "ones_like": _filled_like(1), "full_like": _filled_like(None)},
       example=lambda x: full_like(x, -1.5, None)),
)  # fmt: skip
