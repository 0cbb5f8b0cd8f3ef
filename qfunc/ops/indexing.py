"""Spellings of reading parts of a tensor, a list or a shape, and of swapping axes: each becomes one canonical call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qfunc.ops.vocabulary import BY_NAME

Call = tuple[Callable[..., Any], tuple[Any, ...]]
Rewrite = Callable[[tuple[Any, ...], dict[str, Any]], Call | None]


def element(values: Any, index: Any) -> Any:
    """An entry of a shape, a list or a dict: no slice of a tensor.

    >>> element((2, 3, 5), 1)
    3
    """
    return values[index]


def _slice(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = dict(zip(("input", "dim", "start", "end", "step"), args, strict=False)) | kwargs
    dim, stop = given.get("dim", 0), given.get("end")
    stop = None if isinstance(stop, int) and stop > 2**62 else stop
    return _along(given["input"], dim, slice(given.get("start"), stop, given.get("step", 1)))


def _select(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = dict(zip(("input", "dim", "index"), args, strict=False)) | kwargs
    return _along(given["input"], given["dim"], given["index"])


def _narrow(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = dict(zip(("input", "dim", "start", "length"), args, strict=False)) | kwargs
    start, length = given["start"], given["length"]
    if not isinstance(start, int) or not isinstance(length, int) or start < 0:
        return None
    return _along(given["input"], given["dim"], slice(start, start + length))


def _along(x: Any, dim: Any, index: Any) -> Call | None:
    if not isinstance(dim, int):
        return None
    after = (slice(None),) * (-dim - 1)
    return BY_NAME["getitem"].target, (x, (..., index, *after) if dim < 0 else ((slice(None),) * dim + (index,)))


def _getitem(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    # A string can only be the key of a dict.
    return (element if isinstance(args[1], str) else BY_NAME["getitem"].target), args


def _transposed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    return BY_NAME["transpose"].target, (kwargs.get("input", *args[:1]), 0, 1)


def _matrix_transposed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    return BY_NAME["transpose"].target, (args[0], -2, -1)


def _getattr(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    rewrite = {"T": _transposed, "mT": _matrix_transposed}.get(args[1])
    return rewrite and rewrite(args[:1], {})


INDEXING: dict[str, Rewrite] = {
    "slice": _slice,
    "select": _select,
    "narrow": _narrow,
    "getitem": _getitem,
    "t": _transposed,
    "numpy_T": _transposed,
    "mT": _matrix_transposed,
    "getattr": _getattr,
}
"""The rewrites of this file, by short name."""
