"""Bounds of the error of one op in float32, whatever the order of its sums: of its result, given those of its inputs.

u = 2^-23 bounds the relative error of one rounding, twice over.  The rules are first order in u:

- sums of n products: the bound is (n + 2) u times the sum of the products' magnitudes, plus the inputs' errors, summed with
  the magnitudes of the other factor;
- functions of one entry: 32 u (|x| + |f(x)|), and 8 u more for activations, plus the largest change of f within the inputs'
  errors; additions and products round once;
- softmax: the relative error is that of the exponentials, 2 max(e) + (n + 32 + 2 |x - max x|) u;
- norms: the errors of mean and variance by the rule of sums, and their effect on (x - m) / sqrt(v + eps).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, has, kind_of, parameters_of

__all__ = ["Approximation", "approximate"]

_U = 2.0**-23
_CURVE = 32
_NEAR_ONE = 0.25
"""Activations such as ELU subtract exponentials near 1, whose rounding is an absolute error: 8 u for factors up to 2."""


@frozen(eq=False)
class Approximation:
    """Real values in float64, and a bound of the magnitude of their error, of the same shape."""

    value: Tensor
    error: Tensor

    @classmethod
    def exact(cls, value: Tensor) -> Approximation:
        """Return values without an error."""
        wide = value.detach().double()
        return cls(wide, torch.zeros_like(wide))


def approximate(node: fx.Node, arguments: tuple[Any, ...]) -> Any:
    """Return the `Approximation` of a node's result, or its exact value if it is no real tensor.

    Args:
        node: An op of the float network.
        arguments: Its arguments, with an `Approximation` in place of each real tensor.

    Returns:
        None if no rule bounds the op's error.
    """
    operands = _approximations(arguments)
    value = _call(node, arguments, lambda a: a.value)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value if _real_tuple(value) is None and all(bool((o.error == 0).all()) for o in operands) else None
    if not operands or has(node, Trait.CREATES):
        return Approximation.exact(value)
    kind = kind_of(node)
    if kind in _RULES:
        error = _RULES[kind](node, arguments, value)
    elif has(node, Trait.MOVES_VALUES):
        error = _call(node, arguments, lambda a: a.error)
    elif has(node, Trait.ELEMENTWISE):
        error = _entrywise(node, arguments, value)
    else:
        return None
    return None if error is None else Approximation(value.double(), error.double())


def _real_tuple(value: Any) -> Any:
    # Ops of several results have no rule.
    return value if isinstance(value, tuple | list) and any(isinstance(v, Tensor) for v in value) else None


def _approximations(arguments: Any) -> list[Approximation]:
    found: list[Approximation] = []

    def collect(a: Any) -> None:
        if isinstance(a, Approximation):
            found.append(a)
        elif isinstance(a, tuple | list):
            for item in a:
                collect(item)

    collect(arguments)
    return found


def _call(node: fx.Node, arguments: Any, of: Callable[[Approximation], Any]) -> Any:
    assert callable(node.target)
    return node.target(*_mapped(arguments, of))


def _mapped(argument: Any, of: Callable[[Approximation], Any]) -> Any:
    if isinstance(argument, Approximation):
        return of(argument)
    if isinstance(argument, tuple | list):
        return type(argument)(_mapped(a, of) for a in argument)
    return argument


def _entrywise(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    operands = _approximations(arguments)
    error = value.abs() * _U
    if not has(node, Trait.ARITHMETIC) and not has(node, Trait.CLAMPS):
        error = (error + _NEAR_ONE * _U * has(node, Trait.ACTIVATION)) * _CURVE
        for operand in operands:
            if operand.value.shape == value.shape:
                error = error + _CURVE * _U * operand.value.abs()
    inexact = [operand for operand in operands if bool(operand.error.any())]
    largest = torch.zeros_like(value)
    for signs in itertools.product((-1.0, 1.0), repeat=len(inexact)):
        side = {id(operand): sign for operand, sign in zip(inexact, signs, strict=True)}
        moved = _call(node, arguments, lambda a: a.value + side.get(id(a), 0.0) * a.error)  # noqa: B023
        largest = torch.fmax(largest, (moved - value).abs())
    return error + largest


def _sum_of_products(node: fx.Node, arguments: Any, value: Tensor) -> Tensor | None:
    names = parameters_of(node)
    factors = [a for a in arguments if isinstance(a, Approximation)]
    biases = [a for name, a in zip(names, arguments, strict=True) if name == "bias" and isinstance(a, Approximation)]
    error: Tensor = _call(node, arguments, lambda a: a.value.abs()) * (_terms(node, arguments, value) + 2) * _U
    for factor in factors:
        if any(factor is b for b in biases) or bool((factor.error == 0).all()):
            continue

        def magnitude(a: Approximation, factor: Approximation = factor) -> Tensor:
            return a.error if a is factor else torch.zeros_like(a.value) if any(a is b for b in biases) else a.value.abs()

        error = error + _call(node, arguments, magnitude)
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
    x = arguments[0].value
    if attribute(node, "mode") not in ("nearest", "bilinear", "linear", "nearest-exact"):
        return None
    error = _sum_of_products(node, arguments, value)
    largest = x.abs().amax(list(range(2, x.ndim)), keepdim=True)
    return None if error is None else error + 4 * (max(x.shape[2:]) + 2) * _U * largest


def _largest(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    x = arguments[0]
    dims = attribute(node, "dim")
    return torch.amax(x.error, dims, keepdim=bool(attribute(node, "keepdim")))


def _window_maximum(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    return _call(node, arguments, lambda a: a.error)  # type: ignore[no-any-return]


def _softmax(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    x, dim = arguments[0], attribute(node, "dim")
    spread = (x.value - x.value.amax(dim, keepdim=True)).abs()
    relative = 2 * x.error.amax(dim, keepdim=True) + (x.value.shape[dim] + _CURVE + 2 * spread) * _U
    return value * torch.expm1(relative) + 2.0**-126


def _log_softmax(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    x, dim = arguments[0], attribute(node, "dim")
    error: Tensor = 2 * x.error.amax(dim, keepdim=True) + (x.value.shape[dim] + _CURVE + 4 * value.abs()) * _U
    return error


def _layer_norm(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    dims = list(range(-len(attribute(node, "normalized_shape")), 0))
    return _scaled(node, arguments, value, _normalized(arguments[0], dims, float(attribute(node, "eps"))), last=True)


def _rms_norm(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    dims, eps = list(range(-len(attribute(node, "normalized_shape")), 0)), attribute(node, "eps")
    least = torch.finfo(torch.float32).eps if eps is None else float(eps)
    return _scaled(node, arguments, value, _normalized(arguments[0], dims, least, centred=False), last=True)


def _group_norm(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    x, groups = arguments[0], int(attribute(node, "num_groups"))
    shape = (x.value.shape[0], groups, -1)
    rows = Approximation(x.value.reshape(shape), x.error.reshape(shape))
    error = _normalized(rows, [2], float(attribute(node, "eps"))).reshape(x.value.shape)
    return _scaled(node, arguments, value, error, last=False)


def _instance_norm(node: fx.Node, arguments: Any, value: Tensor) -> Tensor | None:
    x = arguments[0]
    if not attribute(node, "use_input_stats"):
        return None
    error = _normalized(x, list(range(2, x.value.ndim)), float(attribute(node, "eps")))
    return _scaled(node, arguments, value, error, last=False)


def _normalized(x: Approximation, dims: Sequence[int], eps: float, centred: bool = True) -> Tensor:
    # The error of (x - m) / sqrt(v + eps), also where v is computed as mean(x^2) - m^2.
    v, e, dims = x.value, x.error, list(dims)
    n = math.prod(v.shape[d] for d in dims)

    def mean(t: Tensor) -> Tensor:
        return t.mean(dims, keepdim=True)

    m = mean(v) if centred else torch.zeros_like(mean(v))
    mean_error = mean(e) + (n + 2) * _U * mean(v.abs()) if centred else torch.zeros_like(m)
    d = v - m
    offset_error = e + mean_error + _U * (v.abs() + m.abs())
    variance = mean(d * d)
    variance_error = mean(2 * d.abs() * offset_error + offset_error**2) + (n + 4) * _U * (mean(v * v) + m * m)
    factor = torch.rsqrt(variance + eps)
    least = torch.rsqrt((variance - variance_error).clamp(min=0) + eps)
    factor_error = least - factor + 8 * _U * factor
    return offset_error * (factor + factor_error) + d.abs() * factor_error + _U * d.abs() * factor


def _scaled(node: fx.Node, arguments: Any, value: Tensor, error: Tensor, *, last: bool) -> Tensor:
    # The error of x * weight + bias, given that of x.
    given = dict(zip(parameters_of(node), arguments, strict=True))
    weight, bias = (given.get(name) for name in ("weight", "bias"))
    shape = (-1,) if last else (1, -1, *[1] * (value.ndim - 2))
    if isinstance(weight, Approximation):
        scale = weight.value if last else weight.value.reshape(shape)
        error = error * scale.abs()
    rest = torch.zeros(())
    if isinstance(bias, Approximation):
        rest = (bias.value if last else bias.value.reshape(shape)).abs()
    return error + 3 * _U * (value.abs() + rest)


_RULES: dict[str, Callable[[fx.Node, Any, Tensor], Tensor | None]] = {
    **dict.fromkeys(("linear", "matmul", "conv", "conv_transpose"), _sum_of_products),
    **dict.fromkeys(("mean", "sum", "cumsum", "global_avg_pool", "avg_pool", "adaptive_avg_pool"), _sum_of_products),
    "resize": _resize, "amax": _largest, "amin": _largest, "max_pool": _window_maximum, "softmax": _softmax,
    "log_softmax": _log_softmax, "layer_norm": _layer_norm, "rms_norm": _rms_norm, "group_norm": _group_norm,
    "instance_norm": _instance_norm,
}  # fmt: skip
"""The rule of each kind whose bound does not follow from its traits."""
