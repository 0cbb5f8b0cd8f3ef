"""Arithmetic on numbers that are computed from sizes, as PyTorch's exporter writes x.view(x.shape[0], -1)."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from onnx import helper
from torch import fx

from qfunc.reading.node import NodeReader
from qfunc.reading.values import Number, Numbers, Value, made_of, numbers_of


def on_numbers(r: NodeReader) -> Value | None:
    """Return the result of an op on numbers, or None if the op computes a tensor."""
    rule = _RULES.get(r.op)
    given = [v for v in r.inputs if v is not None]
    if rule is None or not any(isinstance(v, Numbers) for v in given) or any(numbers_of(v) is None for v in given):
        return None
    return rule(r)


def _made(r: NodeReader, entries: list[Number], scalar: bool, dtype: torch.dtype | None = None) -> Value:
    return made_of(entries, scalar, r.dtype() if dtype is None else dtype, r.path)


def _is_scalar(r: NodeReader, index: int) -> bool:
    return r.rank(index) == 0


def _gather(r: NodeReader) -> Value | None:
    places = r.tensor(1)
    if places is None:
        return None
    entries = r.numbers(0, "numbers")
    return _made(r, [entries[int(i)] for i in places.reshape(-1)], places.ndim == 0)


def _slice(r: NodeReader) -> Value | None:
    if not all(r.tensor(i) is not None for i in range(1, len(r.inputs)) if r.has(i)):
        return None
    starts, ends, steps = r.listed("starts", 1), r.listed("ends", 2), r.listed("steps", 4)
    assert starts is not None
    assert ends is not None
    part: Any = slice(starts[0], ends[0], steps[0] if steps else 1)
    return _made(r, list(r.numbers(0, "numbers")[part]), scalar=False)


def _concat(r: NodeReader) -> Value:
    return _made(r, [e for i in range(len(r.inputs)) for e in r.numbers(i, "numbers")], scalar=False)


def _unsqueeze(r: NodeReader) -> Value | None:
    return _made(r, list(r.numbers(0, "numbers")), scalar=False) if _is_scalar(r, 0) and len(r.axes() or ()) == 1 else None


def _squeeze(r: NodeReader) -> Value | None:
    entries = r.numbers(0, "numbers")
    return _made(r, list(entries), scalar=True) if len(entries) == 1 else None


def _reshape(r: NodeReader) -> Value | None:
    shape = r.tensor(1)
    return None if shape is None or shape.numel() > 1 else _made(r, list(r.numbers(0, "numbers")), shape.numel() == 0)


def _cast(r: NodeReader) -> Value | None:
    dtype = torch_type(r.attribute("to"))
    if dtype is None or dtype == torch.bool:
        return None
    integers = not dtype.is_floating_point and r.dtype().is_floating_point
    entries = [r.arithmetic(int, e) if integers else e for e in r.numbers(0, "numbers")]
    return _made(
        r, [float(e) if dtype.is_floating_point and isinstance(e, int) else e for e in entries], _is_scalar(r, 0), dtype
    )


def _each(function: Callable[[NodeReader], Callable[..., Any]]) -> Callable[[NodeReader], Value | None]:
    def rule(r: NodeReader) -> Value | None:
        columns = [r.numbers(i, "numbers") for i in range(len(r.inputs))]
        length = max(map(len, columns))
        if any(len(c) not in (1, length) for c in columns):
            return None
        rows = zip(*(c * length if len(c) == 1 else c for c in columns), strict=True)
        entries = [_exact(r, function(r), *row) for row in rows]
        return _made(r, entries, all(_is_scalar(r, i) for i in range(len(columns))))

    return rule


def _exact(r: NodeReader, function: Callable[..., Any], *given: Number) -> Number:
    # x * 1, x + 0 and x / 1 are x, so that sizes stay sizes.
    if len(given) == 2 and given[1] == {operator.mul: 1, operator.add: 0, operator.sub: 0, operator.floordiv: 1}.get(function):
        return given[0]
    if len(given) == 2 and given[0] == {operator.mul: 1, operator.add: 0}.get(function):
        return given[1]
    return reduce(lambda a, b: r.arithmetic(function, a, b), given) if len(given) > 1 else r.arithmetic(function, *given)


def _division(r: NodeReader) -> Callable[..., Any]:
    return operator.truediv if r.dtype().is_floating_point else operator.floordiv


def _reduced(function: Callable[..., Any]) -> Callable[[NodeReader], Value | None]:
    def rule(r: NodeReader) -> Value | None:
        entries = r.numbers(0, "numbers")
        found = reduce(lambda a, b: _exact(r, function, a, b), entries)
        return _made(r, [found], not r.attribute("keepdims", 1))

    return rule


def _compared(function: Callable[[Any, Any], bool]) -> Callable[[NodeReader], Value | None]:
    # A size is at least 0: this decides comparisons with negative numbers, such as those of torch's expand.
    def rule(r: NodeReader) -> Value | None:
        a, b = r.numbers(0, "numbers"), r.numbers(1, "numbers")
        length = max(len(a), len(b))
        pairs = zip(a * length if len(a) == 1 else a, b * length if len(b) == 1 else b, strict=True)
        decided = [_decided(function, x, y) for x, y in pairs]
        if any(d is None for d in decided):
            return None
        return made_of([bool(d) for d in decided], _is_scalar(r, 0) and _is_scalar(r, 1), torch.bool, r.path)

    return rule


def _decided(function: Callable[[Any, Any], bool], x: Number, y: Number) -> bool | None:
    if not isinstance(x, fx.Node) and not isinstance(y, fx.Node):
        return function(x, y)
    if isinstance(x, fx.Node) and isinstance(y, fx.Node):
        return function(0, 0) if x is y else None
    number = y if isinstance(x, fx.Node) else x
    if isinstance(number, fx.Node) or number >= 0:
        return None
    return function(0, number) if isinstance(x, fx.Node) else function(number, 0)


def _where(r: NodeReader) -> Value | None:
    condition = r.tensor(0)
    if condition is None:
        return None
    columns = [condition.reshape(-1).tolist(), *(list(r.numbers(i, "numbers")) for i in (1, 2))]
    length = max(map(len, columns))
    rows = zip(*(c * length if len(c) == 1 else c for c in columns), strict=True)
    return _made(r, [b if a else c for a, b, c in rows], all(_is_scalar(r, i) for i in range(3)), r.dtype(1))


def torch_type(code: int) -> torch.dtype | None:
    """Return the type of torch for one of ONNX; float32 for all reals; None for text and types that torch lacks.

    >>> torch_type(7), torch_type(11)
    (torch.int64, torch.float32)
    """
    try:
        found: torch.dtype = torch.from_numpy(helper.tensor_dtype_to_np_dtype(code).type([0])).dtype
    except (TypeError, KeyError, ValueError):
        return torch.float32 if code in (1, 10, 11, 16) else None
    return torch.float32 if found.is_floating_point else found


_RULES: dict[str, Callable[[NodeReader], Value | None]] = {
    "Gather": _gather, "Slice": _slice, "Concat": _concat, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze, "Cast": _cast,
    "Reshape": _reshape, "Identity": lambda r: r.value(0), "Add": _each(lambda r: operator.add), "Where": _where,
    "Sub": _each(lambda r: operator.sub), "Mul": _each(lambda r: operator.mul), "Div": _each(_division),
    "Mod": _each(lambda r: operator.mod), "Min": _each(lambda r: min), "Max": _each(lambda r: max),
    "Neg": _each(lambda r: operator.neg), "Floor": _each(lambda r: math.floor), "Ceil": _each(lambda r: math.ceil),
    "Sqrt": _each(lambda r: math.sqrt), "Pow": _each(lambda r: operator.pow), "ReduceProd": _reduced(operator.mul),
    "ReduceSum": _reduced(operator.add), "ReduceMax": _reduced(max), "ReduceMin": _reduced(min),
    "Equal": _compared(operator.eq), "Less": _compared(operator.lt), "Greater": _compared(operator.gt),
    "LessOrEqual": _compared(operator.le), "GreaterOrEqual": _compared(operator.ge),
}  # fmt: skip
"""Op -> its result on numbers; None if it is not known or no numbers."""
