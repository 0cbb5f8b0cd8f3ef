"""Bounds of the float32 error of moments, of norms of vectors, and of values in their order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from qfunc.emulation.approximation import UNIT, Approximation, setting
from qfunc.emulation.norm_bounds import spread_of
from qfunc.ops.node import attribute

_U = UNIT
_LEAST = 2.0**-126
"""Squares below it lose digits, or are 0."""


def _dims(x: Approximation, dim: Any) -> list[int]:
    given = range(x.value.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    return [d % x.value.ndim for d in given]


def _root(square: Tensor, error: Tensor) -> Tensor:
    # The error of the root of a square with an error.
    root, ends = square.sqrt(), [(square + sign * error).clamp(min=0).sqrt() for sign in (-1, 1)]
    return torch.fmax(root - ends[0], ends[1] - root) + 4 * _U * root


def _variance(node: fx.Node, arguments: Any) -> tuple[Tensor, Tensor] | None:
    # The variance with its correction, and its error.
    x, keep, correction = arguments[0], bool(setting(node, arguments, "keepdim")), float(setting(node, arguments, "correction"))
    dims = _dims(x, setting(node, arguments, "dim"))
    count = math.prod(x.value.shape[d] for d in dims)
    if count <= correction:
        return None
    spread = spread_of(x, dims)
    factor = count / (count - correction)
    found, error = spread.variance * factor, (spread.variance_error + _LEAST) * factor
    error = error + 4 * _U * found
    return (found, error) if keep else (found.squeeze(dims), error.squeeze(dims))


def _var(node: fx.Node, arguments: Any, value: Tensor) -> Tensor | None:
    found = _variance(node, arguments)
    return None if found is None else found[1]


def _std(node: fx.Node, arguments: Any, value: Tensor) -> Tensor | None:
    found = _variance(node, arguments)
    return None if found is None else _root(*found)


def _with_mean(rule: Callable[[fx.Node, Any, Tensor], Tensor | None]) -> Callable[[fx.Node, Any, Any], Any]:
    def bound(node: fx.Node, arguments: Any, value: Any) -> Any:
        error, x = rule(node, arguments, value[0]), arguments[0]
        if error is None:
            return None
        dims, keep = _dims(x, attribute(node, "dim")), bool(attribute(node, "keepdim"))
        mean = spread_of(x, dims).mean_error
        return Approximation(value[0], error), Approximation(value[1], mean if keep else mean.squeeze(dims))

    return bound


def _length(x: Approximation, order: float, dims: list[int]) -> tuple[Tensor, Tensor] | None:
    # The norm of order 1 or 2 along some axes, which stay, and its error.
    count, size = math.prod(x.value.shape[d] for d in dims), x.value.abs()
    if order == 1:
        found = size.sum(dims, keepdim=True)
        return found, x.error.sum(dims, keepdim=True) + (count + 2) * _U * found
    if order != 2:
        return None
    square = (size * size).sum(dims, keepdim=True)
    moved = (2 * size * x.error + x.error**2).sum(dims, keepdim=True)
    return square.sqrt(), _root(square, moved + (count + 2) * _U * square + count * _LEAST)


def _vector_norm(node: fx.Node, arguments: Any, value: Tensor) -> Tensor | None:
    x = arguments[0]
    found = _length(x, float(setting(node, arguments, "ord")), _dims(x, setting(node, arguments, "dim")))
    return None if found is None else found[1].reshape(value.shape)


def _divisor(x: Approximation, order: float, dim: Any, eps: float) -> tuple[Tensor, Tensor] | None:
    # max(norm, eps), and the least that it is within its error.
    found = _length(x, order, _dims(x, dim))
    return None if found is None else (found[0].clamp(min=eps), (found[0] - found[1]).clamp(min=eps * (1 - _U)))


def _normalize(node: fx.Node, arguments: Any, value: Tensor) -> Tensor | None:
    x = arguments[0]
    found = _divisor(
        x, float(setting(node, arguments, "p")), setting(node, arguments, "dim"), float(setting(node, arguments, "eps"))
    )
    if found is None:
        return None
    error: Tensor = x.error / found[1] + x.value.abs() * (1 / found[1] - 1 / found[0]) + 4 * _U * value.abs()
    return error


def _cosine(node: fx.Node, arguments: Any, value: Tensor) -> Tensor | None:
    shape = (arguments[0].value + arguments[1].value).shape
    a, b = (Approximation(o.value.expand(shape), o.error.expand(shape)) for o in arguments[:2])
    dim, eps = setting(node, arguments, "dim"), float(setting(node, arguments, "eps"))
    ends = _divisor(a, 2, dim, eps), _divisor(b, 2, dim, eps)
    if ends[0] is None or ends[1] is None:
        return None
    length, least = ((ends[0][i] * ends[1][i]).squeeze(dim) for i in (0, 1))
    sizes = (a.value * b.value).abs().sum(dim)
    moved = (a.value.abs() * b.error + a.error * (b.value.abs() + b.error)).sum(dim)
    product = (a.value * b.value).sum(dim).abs()
    error: Tensor = moved + (shape[dim] + 8) * _U * sizes + shape[dim] * _LEAST
    return error / least + product * (1 / least - 1 / length) + 8 * _U * value.abs()


def _ordered(node: fx.Node, arguments: Any, value: Any) -> Any:
    # Values in their order move by at most the largest error; the places are known where there is no error.
    x, (values, places) = arguments[0], value
    error = x.error.amax(setting(node, arguments, "dim"), keepdim=values.ndim == x.value.ndim)
    return Approximation(values, error.expand(values.shape)), None if bool(error.any()) else places


MOMENTS: dict[str, Callable[[fx.Node, Any, Tensor], Tensor | None]] = {
    "var": _var, "std": _std, "vector_norm": _vector_norm, "normalize": _normalize, "cosine_similarity": _cosine,
}  # fmt: skip
"""The rule of each moment and norm of vectors."""

SEVERAL_RESULTS: dict[str, Callable[[fx.Node, Any, Any], Any]] = {
    "var_mean": _with_mean(_var), "std_mean": _with_mean(_std),
    **dict.fromkeys(("max", "min", "sort", "topk"), _ordered),
}  # fmt: skip
"""The approximations of the results of ops that have several, or None."""
