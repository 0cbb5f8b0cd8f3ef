"""Read reductions, sorting and cumulative sums."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from qfunc.reading.node import NodeReader, Reader


def _reduced(function: Callable[[NodeReader, Any, tuple[int, ...], bool], Any]) -> Reader:
    def read(r: NodeReader) -> Any:
        axes = r.axes()
        if axes == () or axes is None:
            if r.attribute("noop_with_empty_axes", 0):
                return function(r, r.x(), (), True) if r.op in _OF_EACH else r.value(0)
            axes = tuple(range(r.known_rank()))
        return function(r, r.x(), axes, bool(r.attribute("keepdims", 1)))

    return read


_OF_EACH = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
"""Reductions that compute of each entry, also along no axis."""


def _plain(function: Any) -> Reader:
    return _reduced(lambda r, x, axes, keep: r.call(function, x, axes, keep))


def _sum(r: NodeReader, x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    return x if not axes else r.call(torch.sum, x, axes, keep)


def _extreme(function: Any) -> Reader:
    def reduce(r: NodeReader, x: Any, axes: tuple[int, ...], keep: bool) -> Any:
        if r.dtype() != torch.bool:
            return r.call(function, x, axes, keep)
        return r.call(torch.Tensor.to, r.call(function, r.call(torch.Tensor.to, x, torch.int32), axes, keep), torch.bool)

    return _reduced(reduce)


def _product(r: NodeReader, x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    rank = r.known_rank()
    for axis in sorted((a % rank for a in axes), reverse=True):
        x = r.call(torch.prod, x, axis, keep)
    return x


def _l1(r: NodeReader, x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    return _sum(r, r.call(torch.abs, x), axes, keep)


def _l2(r: NodeReader, x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    return r.call(torch.linalg.vector_norm, x, 2, axes, keep) if axes else r.call(torch.abs, x)


def _log_sum(r: NodeReader, x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    return r.call(torch.log, _sum(r, x, axes, keep))


def _log_sum_exp(r: NodeReader, x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    return r.call(torch.logsumexp, x, axes, keep) if axes else x


def _sum_square(r: NodeReader, x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    return _sum(r, r.call(torch.mul, x, x), axes, keep)


def _place(function: Any) -> Reader:
    def read(r: NodeReader) -> Any:
        axis, keep = int(r.attribute("axis", 0)), bool(r.attribute("keepdims", 1))
        if not r.attribute("select_last_index", 0):
            return r.call(function, r.x(), axis, keep)
        size = r.sizes()[axis]
        first = r.call(function, r.call(torch.flip, r.x(), (axis,)), axis, keep)
        return r.call(torch.sub, r.arithmetic(operator.sub, size, 1), first)

    return read


def _topk(r: NodeReader) -> Any:
    given = r.attribute("k") if r.version < 10 else r.numbers(1, "a number of entries")[0]
    largest, ordered = bool(r.attribute("largest", 1)), bool(r.attribute("sorted", 1))
    whole = r.call(torch.topk, r.x(), given, int(r.attribute("axis", -1)), largest, ordered)
    if isinstance(whole, tuple):
        return list(whole)
    return [r.network.call(name, operator.getitem, whole, k) if name else None for k, name in enumerate(r.outputs)]


def _cumsum(r: NodeReader) -> Any:
    axis = int(r.known(1, "an axis").reshape(-1)[0])
    x: Any = r.x()
    backwards, before = bool(r.attribute("reverse", 0)), bool(r.attribute("exclusive", 0))
    x = r.call(torch.flip, x, (axis,)) if backwards else x
    found = r.call(torch.cumsum, x, axis)
    found = r.call(torch.sub, found, x) if before else found
    return r.call(torch.flip, found, (axis,)) if backwards else found


READERS: dict[str, Reader] = {
    "ReduceMean": _plain(torch.mean), "ReduceSum": _reduced(_sum), "ReduceMax": _extreme(torch.amax),
    "ReduceMin": _extreme(torch.amin), "ReduceProd": _reduced(_product), "ReduceL1": _reduced(_l1),
    "ReduceL2": _reduced(_l2), "ReduceLogSum": _reduced(_log_sum), "ReduceLogSumExp": _reduced(_log_sum_exp),
    "ReduceSumSquare": _reduced(_sum_square), "ArgMax": _place(torch.argmax), "ArgMin": _place(torch.argmin),
    "TopK": _topk, "CumSum": _cumsum,
}  # fmt: skip
"""The readers of this family, by operator."""
