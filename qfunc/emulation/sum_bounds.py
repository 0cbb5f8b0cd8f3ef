"""Bounds of the float32 error of sums of products, in any order or by Winograd's transforms, and of resizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from qfunc.emulation.approximation import UNIT as _U
from qfunc.emulation.approximation import Approximation, call, setting
from qfunc.ops.node import attribute, kind_of, parameters_of

_NOTHING = 2.0**-99


def _sum_of_products(node: fx.Node, arguments: Any, value: Tensor) -> Tensor | None:
    names = parameters_of(node)
    factors = [a for a in arguments if isinstance(a, Approximation)]
    biases = [a for name, a in zip(names, arguments, strict=True) if name == "bias" and isinstance(a, Approximation)]
    error: Tensor = call(node, arguments, lambda a: a.value.abs()) * (_terms(node, arguments, value) + 2) * _U
    if kind_of(node) in ("linear", "matmul", "conv", "conv_transpose"):
        error = error + _NOTHING
    if kind_of(node) == "conv" and _by_winograd(node, factors):
        error = error + _transformed(node, arguments)
    for factor in factors:
        if any(factor is b for b in biases) or bool((factor.error == 0).all()):
            continue

        def magnitude(a: Approximation, factor: Approximation = factor) -> Tensor:
            return a.error if a is factor else torch.zeros_like(a.value) if any(a is b for b in biases) else a.value.abs()

        error = error + call(node, arguments, magnitude)
    return error


def _by_winograd(node: fx.Node, factors: list[Approximation]) -> bool:
    window, ones = tuple(factors[1].value.shape[2:]), (1, (1, 1), [1, 1])
    return window == (3, 3) and attribute(node, "stride") in ones and attribute(node, "dilation") in ones


def _transformed(node: fx.Node, arguments: Any) -> Tensor:
    # The largest magnitudes in all tiles that hold a place, and the largest weight of each pair of channels.
    x, weight, *_ = (a for a in arguments if isinstance(a, Approximation))
    near = F.max_pool2d(x.value.abs() + x.error, 15, 1, 7)
    largest = weight.value.abs().amax((2, 3), keepdim=True).expand_as(weight.value)

    def magnitude(a: Approximation) -> Tensor:
        return near if a is x else largest if a is weight else torch.zeros_like(a.value)

    error: Tensor = call(node, arguments, magnitude)
    return (x.value.shape[1] + 48) * _U * error


def _product(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    # A partial product below 2^-126 can be rounded to 0; the factors that follow multiply that error.
    count = arguments[0].value.numel() // max(value.numel(), 1)
    largest: Tensor = call(node, arguments, lambda a: a.value.abs() + a.error)
    factor: Tensor = call(node, arguments, lambda a: (a.value.abs() + a.error).clamp(min=1))
    error: Tensor = largest - value.abs() + count * (_U * largest + 2.0**-126 * factor)
    return error


def _einsum(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    # Each operand's error is multiplied by the magnitudes of the others, with their own errors.
    equation, operands = arguments
    terms, result = str(equation).split("->") if "->" in str(equation) else (str(equation), None)
    sizes = {label: int(n) for term, o in zip(terms.split(","), operands, strict=True) for label, n in _sizes(term, o.value)}
    kept = value.numel() if result is None or "." in equation else math.prod(sizes[label] for label in result)
    count = max(math.prod(sizes.values()) // max(kept, 1), 1) if "." not in equation else max(o.value.numel() for o in operands)
    largest: Tensor = torch.einsum(equation, [o.value.abs() + o.error for o in operands])
    exact: Tensor = torch.einsum(equation, [o.value.abs() for o in operands])
    return largest - exact + (count + 2 * len(operands)) * _U * largest + _NOTHING


def _sizes(term: str, value: Tensor) -> list[tuple[str, int]]:
    return [] if "." in term else list(zip(term, value.shape, strict=True))


def _outer(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    a, b = ((x.value.abs(), x.error) for x in arguments)
    error: Tensor = torch.outer(a[0], b[1]) + torch.outer(a[1], b[0] + b[1]) + _U * value.abs()
    return error


def _terms(node: fx.Node, arguments: Any, value: Tensor) -> int:
    operands = [a.value for a in arguments if isinstance(a, Approximation)]
    x, kind = operands[0], kind_of(node)
    if kind in ("linear", "matmul"):
        return int(x.shape[-1])
    if kind == "conv":
        return math.prod(operands[1].shape[1:])
    if kind == "conv_transpose":
        return operands[1].numel() // operands[1].shape[1]
    if kind in ("mean", "sum", "global_avg_pool", "cumsum"):
        return max(x.numel() // max(value.numel(), 1), x.shape[-1] if kind == "cumsum" else 1)
    return math.prod(x.shape[2:])


def _resize(node: fx.Node, arguments: Any, value: Tensor) -> Tensor | None:
    # The positions are computed in float32: the weights of neighbours have an error in proportion to the size.
    x, mode = arguments[0], setting(node, arguments, "mode")
    axes = list(range(2, x.value.ndim))
    largest = x.value.abs().amax(axes, keepdim=True)
    places = 4 * (max(x.value.shape[2:]) + 2) * _U * largest
    if mode == "bicubic":  # 16 neighbours, whose weights have magnitudes of at most 11/8 along each axis
        cubic: Tensor = 2 * x.error.amax(axes, keepdim=True) + 36 * _U * largest + 4 * places + torch.zeros_like(value)
        return cubic
    if mode not in ("nearest", "bilinear", "linear", "nearest-exact"):
        return None
    error = _sum_of_products(node, arguments, value)
    return None if error is None else error + places


SUMS: dict[str, Callable[[fx.Node, Any, Tensor], Tensor | None]] = {
    **dict.fromkeys(("linear", "matmul", "conv", "conv_transpose"), _sum_of_products),
    **dict.fromkeys(("mean", "sum", "cumsum", "global_avg_pool", "avg_pool", "adaptive_avg_pool"), _sum_of_products),
    "prod": _product, "einsum": _einsum, "outer": _outer, "resize": _resize,
}  # fmt: skip
"""The rule of each kind of op that sums products."""
