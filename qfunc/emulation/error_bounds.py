"""Bounds of the error of one op in float32, whatever the order of its sums: of its result, given those of its inputs.

u = 2^-23 bounds the relative error of one rounding, twice over.  The rules are first order in u:

- sums of n products: the bound is (n + 2) u times the sum of the products' magnitudes, plus the inputs' errors, summed with
  the magnitudes of the other factor; and 2^-99 for products with weights, because OpenVINO 2026.4 returns 1e-30 for 0;
- convolutions by windows of 3 x 3, which runtimes compute by Winograd's transforms of tiles of up to 8 x 8 (ncnn): besides
  (C + 48) u times the largest magnitudes of the C channels near a place, multiplied by the largest of the weights; that is
  4 times the largest deviation of ncnn in 1,080 convolutions of 1 to 256 channels, and 1/511 of the bound of F(6, 3);
- functions of one entry: 32 u (|x| + |f(x)|), and 8 u more for activations and erf, plus the largest change of f within the
  inputs' errors and u |x|, which is infinite where those leave the domain of f; additions and products round once;
- products of n entries: n u times the product of the entries' magnitudes, plus what it grows by the inputs' errors;
- einsums: as sums of products, with 2 u more for each operand; sums of windows and differences: as sums;
- softmax: the relative error is that of the exponentials, 2 max(e) + (n + 32 + 2 |x - max x|) u; that
  of log(sum(exp x)) is an absolute error;
- norms: see `norm_bounds`; moments, norms of vectors, and values in their order: see `moment_bounds`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from qfunc.emulation.approximation import UNIT, Approximation, approximations, call, setting
from qfunc.emulation.moment_bounds import MOMENTS, SEVERAL_RESULTS
from qfunc.emulation.norm_bounds import NORMS
from qfunc.emulation.sum_bounds import SUMS
from qfunc.graph.data_movement import reads_values
from qfunc.ops.definition import Trait
from qfunc.ops.indexing import element
from qfunc.ops.node import attribute, has, kind_of

_U = UNIT
_CURVE = 32
_STEPS = ("ceil", "floor", "floor_divide", "fmod", "frac", "remainder", "round", "round_decimals", "trunc", "trunc_divide")
"""Kinds whose results jump."""
_SELECTIONS = ("where", "mask", "maximum", "minimum")
"""Kinds whose results are entries of their operands."""
_VANISHED = 128
"""The distance from the largest entry beyond which exponentials are 0 in float32."""
_NEAR_ONE = 0.25
"""Activations such as ELU subtract exponentials near 1, whose rounding is an absolute error: 8 u for factors up to 2."""
_FROM_ONE = ("erf",)
"""Other kinds of which that is true: LiteRT and XNNPACK compute erf(x) from 1 - p(t) exp(-x^2)."""


def approximate(node: fx.Node, arguments: tuple[Any, ...]) -> Any:
    """Return the `Approximation` of a node's result, or its exact value if it is no real tensor.

    Args:
        node: An op of the float network.
        arguments: Its arguments, with an `Approximation` in place of each real tensor.

    Returns:
        None if no rule bounds the op's error.
    """
    if node.target is element and isinstance(arguments[0], tuple | list):
        return arguments[0][arguments[1]]
    operands = approximations(arguments)
    value = call(node, arguments, lambda a: a.value)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        if not _has_tensors(value):
            sized = not any(reads_values(node, n) for n in node.all_input_nodes)
            return value if sized or has(node, Trait.CREATES) or _is_decided(value, arguments) else None
        if (several := SEVERAL_RESULTS.get(kind_of(node))) is not None and operands:
            return several(node, arguments, value)
        if not has(node, Trait.MOVES_VALUES):
            return None
        return tuple(map(Approximation, value, call(node, arguments, lambda a: a.error)))
    if not operands or has(node, Trait.CREATES):
        return Approximation.exact(value)
    kind = kind_of(node)
    if kind in _RULES:
        error = _RULES[kind](node, arguments, value)
    elif has(node, Trait.MOVES_VALUES):
        error = call(node, arguments, lambda a: a.error)
    elif has(node, Trait.ELEMENTWISE):
        error = _entrywise(node, arguments, value)
    else:
        return None
    return None if error is None else Approximation(value.double(), error.double())


def at_extremum(node: fx.Node, x: Any, places: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return how far x at the places is from its extremum, and the bound of that, or None for other ops and an exact x.

    Args:
        node: An argmax or argmin of the float network.
        x: What it reads.
        places: The result.
    """
    if kind_of(node) not in ("argmax", "argmin") or not isinstance(x, Approximation) or not bool(x.error.any()):
        return None
    dim, value = attribute(node, "dim"), x.value if kind_of(node) == "argmax" else -x.value
    values, errors = (t.flatten() if dim is None else t.movedim(dim, -1) for t in (value, x.error))
    if not bool(((places >= 0) & (places < values.shape[-1])).all()):
        return None
    indices = places.long().reshape(*values.shape[:-1], 1)
    found, error = (torch.gather(t, -1, indices).reshape(places.shape) for t in (values, errors))
    return values.amax(-1).reshape(places.shape) - found, errors.amax(-1).reshape(places.shape) + error


def _is_decided(value: Any, arguments: tuple[Any, ...]) -> bool:
    # True if float32 gives the same integers or booleans: no error in what they are made of, and no comparison of two numbers
    # that are equal but for one rounding each.
    if not all(bool((o.error == 0).all()) for o in approximations(arguments)):
        return False
    if not isinstance(value, Tensor) or value.dtype is not torch.bool or len(arguments) < 2:
        return True
    reals = [a.value if isinstance(a, Approximation) else a for a in arguments[:2]]
    compared = all(isinstance(r, Tensor | int | float) for r in reals)  # the second argument of a cast is a dtype
    if not compared or not any(isinstance(r, Tensor) and r.is_floating_point() for r in reals):
        return True
    a, b = (torch.as_tensor(r, dtype=torch.float64) for r in reals)
    distance = (a - b).abs()
    return not bool(((distance > 0) & (distance <= _U * (a.abs() + b.abs()))).any())


def _has_tensors(value: Any) -> bool:
    return isinstance(value, tuple | list) and any(isinstance(v, Tensor) for v in value)


def _entrywise(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    operands = approximations(arguments)
    error, curve = _finite(value) * _U, not has(node, Trait.ARITHMETIC) and not has(node, Trait.CLAMPS)
    if kind_of(node) in _SELECTIONS:  # one of the entries, rounded to float32
        error = torch.where(value.isfinite(), (value - value.float()).abs(), 0.0)
    elif curve:
        near_one = has(node, Trait.ACTIVATION) or kind_of(node) in _FROM_ONE
        error = (error + _NEAR_ONE * _U * near_one) * _CURVE
        for operand in operands:
            if operand.value.shape == value.shape:
                error = error + _CURVE * _U * _finite(operand.value)
    # A step within the rounding of an exact operand is taken in float64, or in float32 only; a curve may round its operand.
    rounding = _U if (curve and kind_of(node) not in _SELECTIONS) or kind_of(node) in _STEPS else 0.0
    reach = {id(operand): operand.error + rounding * _finite(operand.value) for operand in operands}
    inexact = [operand for operand in operands if bool(reach[id(operand)].any())]
    leaves = any(bool(operand.error.any()) for operand in operands)  # the domain of f, within the errors before it
    largest = torch.zeros_like(value)
    for signs in itertools.product((-1.0, 1.0), repeat=len(inexact)):
        side = {id(operand): sign * reach[id(operand)] for operand, sign in zip(inexact, signs, strict=True)}
        moved = call(node, arguments, lambda a: a.value + side.get(id(a), 0.0))  # noqa: B023
        outside = moved.isnan() & ~value.isnan() & leaves
        largest = torch.where(outside, math.inf, torch.fmax(largest, (moved - value).abs()))
    return error + largest


def _finite(value: Tensor) -> Tensor:
    # The magnitudes of entries, 0 for infinities, which float32 does not round.
    return torch.where(value.isfinite(), value.abs(), 0.0)


def _moved(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    return call(node, arguments, lambda a: a.error)  # type: ignore[no-any-return]


def _difference(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    # The largest errors of neighbours along the axis, and one rounding.
    largest = max(float(a.error.max()) if a.error.numel() else 0.0 for a in approximations(arguments))
    return 2 * largest + _U * value.abs()


def _glu(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    # a sigmoid(b): the sigmoid has a slope of at most 1/4, and an error of its own as an activation has.
    x, dim = arguments[0], setting(node, arguments, "dim")
    (a, b), (a_error, b_error) = x.value.chunk(2, dim), x.error.chunk(2, dim)
    gate = torch.sigmoid(b)
    gate_error = b_error / 4 + _CURVE * _U * (gate + b.abs() * gate + _NEAR_ONE)
    error: Tensor = a_error * (gate + gate_error) + a.abs() * gate_error + 2 * _U * value.abs()
    return error


def _logsumexp(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    x, dim, keep = arguments[0], setting(node, arguments, "dim"), bool(setting(node, arguments, "keepdim"))
    dims = [dim] if isinstance(dim, int) else list(dim)
    largest, count = x.value.amax(dims, keepdim=keep), math.prod(x.value.shape[d] for d in dims)
    spread = (x.value - x.value.amax(dims, keepdim=True)).abs()
    bounded = torch.where(spread.isfinite(), spread, 0.0).clamp(max=_VANISHED).amax(dims, keepdim=keep)
    rounding = (count + _CURVE + 2 * bounded + largest.abs() + 2 * value.abs()) * _U
    error: Tensor = 2 * x.error.amax(dims, keepdim=keep) + rounding
    return error


def _pad(node: fx.Node, arguments: Any, value: Tensor) -> Tensor | None:
    if setting(node, arguments, "mode") != "constant":
        return call(node, arguments, lambda a: a.error)  # type: ignore[no-any-return]
    padded: Tensor = F.pad(arguments[0].error, setting(node, arguments, "pad"))
    return padded


def _largest(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    x = arguments[0]
    dims = setting(node, arguments, "dim")
    return torch.amax(x.error, dims, keepdim=bool(setting(node, arguments, "keepdim")))


def _window_maximum(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    return call(node, arguments, lambda a: a.error)  # type: ignore[no-any-return]


def _softmax(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    x, dim = arguments[0], setting(node, arguments, "dim")
    logits = -x.value if kind_of(node) == "softmin" else x.value
    spread = (logits - logits.amax(dim, keepdim=True)).abs().clamp(max=_VANISHED)
    relative = 2 * x.error.amax(dim, keepdim=True) + (x.value.shape[dim] + _CURVE + 2 * spread) * _U
    return value * torch.expm1(relative) + 2.0**-126


def _log_softmax(node: fx.Node, arguments: Any, value: Tensor) -> Tensor:
    x, dim = arguments[0], setting(node, arguments, "dim")
    error: Tensor = 2 * x.error.amax(dim, keepdim=True) + (x.value.shape[dim] + _CURVE + 4 * _finite(value)) * _U
    return error


_RULES: dict[str, Callable[[fx.Node, Any, Tensor], Tensor | None]] = {
    "pad": _pad, "amax": _largest, "amin": _largest, "max_pool": _window_maximum,
    "adaptive_max_pool": _window_maximum, "softmax": _softmax, "softmin": _softmax, "logsumexp": _logsumexp, "glu": _glu,
    "difference": _difference, **dict.fromkeys(("tril", "triu", "im2col"), _moved),
    "log_softmax": _log_softmax, **MOMENTS, **NORMS, **SUMS,
}  # fmt: skip
"""The rule of each kind whose bound does not follow from its traits."""
