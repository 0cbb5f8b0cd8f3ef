"""Read arithmetic, comparisons, logic and activations that have forms of their own in torch."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F

from qfunc.reading.node import NodeReader, Reader
from qfunc.reading.values import Constant


def _two(function: Any) -> Reader:
    return lambda r: r.call(function, *_operands(r))


def _operands(r: NodeReader) -> tuple[Any, Any]:
    a, b = r.operand(0), r.operand(1)
    if isinstance(a, int | float):  # torch's functions take a tensor first
        return r.x(0), b
    return a, b


def _arithmetic(function: Any, swapped: Any = None) -> Reader:
    # A number as the first operand: 1 - x is torch.rsub(x, 1), 2 x is x * 2.
    def read(r: NodeReader) -> Any:
        a, b = r.operand(0), r.operand(1)
        if isinstance(a, int | float) and swapped is not None:
            return r.call(swapped, b, a)
        return r.call(function, a if not isinstance(a, int | float) else r.x(0), b)

    return read


def _div(r: NodeReader) -> Any:
    a, b = _operands(r)
    if r.dtype().is_floating_point or r.dtype(1).is_floating_point:
        return r.call(torch.div, a, b)
    return r.call(torch.div, a, b, rounding_mode="trunc")


def _mod(r: NodeReader) -> Any:
    return r.call(torch.fmod if r.attribute("fmod", 0) else torch.remainder, *_operands(r))


def _pow(r: NodeReader) -> Any:
    base, exponent = r.operand(0), r.operand(1)
    if isinstance(exponent, float) and exponent.is_integer() and r.dtype().is_floating_point:
        exponent = int(exponent)
    found = r.call(torch.pow, base if not isinstance(base, int | float) else r.x(0), exponent)
    if r.dtype() != r.dtype(1) and not r.dtype().is_floating_point:
        found = r.call(torch.Tensor.to, found, r.dtype())
    return found


def _variadic(of_two: Any, with_number: Any = None) -> Reader:
    def read(r: NodeReader) -> Any:
        given: list[Any] = [r.x(i) for i in range(len(r.inputs))]
        numbers = [v.tensor.item() for v in given if isinstance(v, Constant) and v.tensor.numel() == 1]
        if with_number is not None and len(given) == 2 and len(numbers) == 1:
            other = next(v for v in given if not (isinstance(v, Constant) and v.tensor.numel() == 1))
            rank = next((v.tensor.ndim for v in given if isinstance(v, Constant) and v.tensor.numel() == 1), 0)
            if not isinstance(other, Constant) and rank <= (r.rank(0 if other is given[0] else 1) or 0):
                return with_number(r, other, numbers[0])
        return reduce(lambda a, b: r.call(of_two, a, b), given)

    return read


def _mean(r: NodeReader) -> Any:
    total = reduce(lambda a, b: r.call(torch.add, a, b), [r.x(i) for i in range(len(r.inputs))])
    return r.call(torch.div, total, len(r.inputs)) if len(r.inputs) > 1 else total


def _clip(r: NodeReader) -> Any:
    low: Any
    high: Any
    if "min" in r.attribute_names or "max" in r.attribute_names or r.version < 11:
        low, high = r.attribute("min"), r.attribute("max")
    else:
        ends = [r.number(i) if r.tensor(i) is not None else r.x(i) if r.has(i) else None for i in (1, 2)]
        if any(e is not None and not isinstance(e, int | float) for e in ends):
            return r.call(torch.clamp, r.x(), *(r.x(i) if r.has(i) else None for i in (1, 2)))
        low, high = ends
    largest = torch.finfo(torch.float32).max
    low = None if low is not None and low <= -largest else low
    high = None if high is not None and high >= largest else high
    return r.x() if low is None and high is None else r.call(torch.clamp, r.x(), low, high)


def _hard_sigmoid(r: NodeReader) -> Any:
    alpha, beta = float(r.attribute("alpha", 0.2)), float(r.attribute("beta", 0.5))
    if abs(alpha - 1 / 6) <= 2.0**-24 and beta == 0.5:  # one rounding to float32
        return r.call(F.hardsigmoid, r.x())
    line = r.call(torch.add, r.call(torch.mul, r.x(), alpha), beta)
    return r.call(torch.clamp, line, 0, 1)


def _prelu(r: NodeReader) -> Any:
    slope, rank = r.weight(1), r.rank()
    if isinstance(slope, Constant):
        sizes = list(slope.tensor.shape)
        channels = [n for n in sizes if n != 1]
        place = len(sizes) - sizes.index(channels[0]) if channels else 0
        if not channels or (len(channels) == 1 and rank is not None and rank >= 2 and place == rank - 1):
            flat = slope.tensor.reshape(-1)
            return r.call(torch.prelu, r.x(), Constant(flat, slope.name, True))
    below = r.call(torch.mul, r.call(torch.clamp, r.x(), None, 0), slope)
    return r.call(torch.add, r.call(torch.relu, r.x()), below)


def _thresholded(r: NodeReader) -> Any:
    return r.call(F.threshold, r.x(), float(r.attribute("alpha", 1.0)), 0.0)


def _shrink(r: NodeReader) -> Any:
    lambd, bias = float(r.attribute("lambd", 0.5)), float(r.attribute("bias", 0.0))
    if bias == 0 or bias == lambd:
        return r.call(F.hardshrink if bias == 0 else F.softshrink, r.x(), lambd)
    x = r.x()
    above = r.call(torch.where, r.call(torch.gt, x, lambd), r.call(torch.sub, x, bias), r.call(torch.zeros_like, x))
    return r.call(torch.where, r.call(torch.lt, x, -lambd), r.call(torch.add, x, bias), above)


def _soft(function: Any) -> Reader:
    # Before opset 13 all axes from `axis` on are one.
    def read(r: NodeReader) -> Any:
        if r.version >= 13:
            return r.call(function, r.x(), int(r.attribute("axis", -1)))
        rank, axis = r.known_rank(), int(r.attribute("axis", 1))
        axis = axis + rank if axis < 0 else axis
        dims = r.dims() or ()
        if axis == rank - 1 or all(n == 1 for n in dims[axis + 1 :]):
            return r.call(function, r.x(), axis - rank if axis == rank - 1 else axis)
        found = r.call(function, r.call(torch.flatten, r.x(), axis), axis)
        return r.call(torch.reshape, found, tuple(r.sizes()))

    return read


def _hardmax(r: NodeReader) -> Any:
    rank, axis = r.known_rank(), int(r.attribute("axis", -1 if r.version >= 13 else 1))
    axis = axis + rank if axis < 0 else axis
    whole = r.call(torch.flatten, r.x(), axis) if r.version < 13 and axis != rank - 1 else r.x()
    count = r.length(axis)
    if count is None or (r.version < 13 and axis != rank - 1 and None in (r.dims() or (None,))[axis:]):
        raise r.refuse("a size that varies", "a known size", r.network.how_to_fix_sizes)
    if r.version < 13:
        count = math.prod(r.length(a) or 1 for a in range(axis, rank))
    places = r.call(torch.argmax, whole, axis, False)
    found = r.call(torch.Tensor.to, r.call(F.one_hot, places, count), torch.float32)
    found = found if axis == rank - 1 or r.version < 13 else r.call(torch.movedim, found, -1, axis)
    return found if r.version >= 13 else r.call(torch.reshape, found, tuple(r.sizes()))


def _logical(function: Any) -> Reader:
    return lambda r: r.call(function, *(r.x(i) for i in range(len(r.inputs))))


def _is_inf(r: NodeReader) -> Any:
    below, above = bool(r.attribute("detect_negative", 1)), bool(r.attribute("detect_positive", 1))
    if below and above:
        return r.call(torch.isinf, r.x())
    end = math.inf if above else -math.inf
    return r.call(torch.eq, r.x(), end if below or above else math.nan)


def _swish(r: NodeReader) -> Any:
    alpha = float(r.attribute("alpha", 1.0))
    if alpha == 1:
        return r.call(F.silu, r.x())
    return r.call(torch.mul, r.x(), r.call(torch.sigmoid, r.call(torch.mul, r.x(), alpha)))


def _selu(r: NodeReader) -> Any:
    alpha, gamma = float(r.attribute("alpha", 1.6732632423543772)), float(r.attribute("gamma", 1.0507009873554805))
    if abs(alpha - 1.6732632423543772) < 1e-6 and abs(gamma - 1.0507009873554805) < 1e-6:
        return r.call(torch.selu, r.x())
    return r.call(torch.mul, r.call(F.elu, r.x(), alpha), gamma)


def _softplus(r: NodeReader) -> Any:
    return r.call(F.softplus, r.x())


def _with_limit(name: str) -> Callable[[NodeReader, Any, Any], Any]:
    return lambda r, x, number: r.call(torch.clamp, x, **{name: number})


READERS: dict[str, Reader] = {
    "Add": _arithmetic(torch.add, torch.add), "Sub": _arithmetic(torch.sub, torch.rsub),
    "Mul": _arithmetic(torch.mul, torch.mul), "Div": _div, "Mod": _mod, "Pow": _pow,
    "Sum": _variadic(torch.add), "Mean": _mean, "Max": _variadic(torch.maximum, _with_limit("min")),
    "Min": _variadic(torch.minimum, _with_limit("max")), "Clip": _clip, "Relu": lambda r: r.call(F.relu, r.x()),
    "HardSigmoid": _hard_sigmoid, "PRelu": _prelu, "ThresholdedRelu": _thresholded, "Shrink": _shrink,
    "Softmax": _soft(torch.softmax), "LogSoftmax": _soft(torch.log_softmax), "Hardmax": _hardmax, "Softplus": _softplus,
    "Selu": _selu, "Swish": _swish, "IsInf": _is_inf,
    "Equal": _two(torch.eq), "Greater": _two(torch.gt), "GreaterOrEqual": _two(torch.ge), "Less": _two(torch.lt),
    "LessOrEqual": _two(torch.le), "And": _logical(torch.logical_and), "Or": _logical(torch.logical_or),
    "Xor": _logical(operator.xor), "Not": _logical(torch.logical_not), "BitwiseAnd": _logical(torch.bitwise_and),
    "BitwiseOr": _logical(torch.bitwise_or), "BitwiseXor": _logical(torch.bitwise_xor),
    "BitwiseNot": _logical(torch.bitwise_not),
}  # fmt: skip
"""The readers of this family, by operator."""
