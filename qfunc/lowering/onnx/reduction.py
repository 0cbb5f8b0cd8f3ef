"""Write reductions, sorting and cumulative sums as ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qfunc.errors import DeployError
from qfunc.lowering.onnx.context import OpContext, known
from qfunc.lowering.onnx.creation import operand, operands
from qfunc.lowering.onnx.formula import Write, Writer

BOOL, INT32 = 9, 6  # TensorProto


def dims_of(c: OpContext, name: str = "dim") -> list[int]:
    """Return the axes that an op reduces; without a value, all axes."""
    value = c[name]
    dims = [value] if isinstance(value, int) else list(value or range(c.shape().rank))
    return [d % c.shape().rank for d in dims]


def reduced(c: OpContext, op: str, value: str, dims: list[int], keepdim: bool, name: str = "") -> str:
    """Write a reduction. Its axes are an attribute before opset 18, except those of ReduceSum, and an input from then on."""
    axes: dict[str, Any] = {"axes": dims} if c.graph.opset < 18 and op != "ReduceSum" else {}
    inputs = [value] if axes else [value, c.graph.integers(*dims, name=f"{c.name}.axes")]
    return c.graph.node(op, inputs, name or c.name, keepdims=int(keepdim), **axes)


def _reduce(op: str) -> Write:
    return lambda c: reduced(c, op, c.input(), dims_of(c), bool(c["keepdim"]))


def _logical(op: str) -> Write:
    # any and all are the maximum and the minimum of 0 and 1.
    def write(c: OpContext) -> str:
        integers = c.graph.node(
            "Cast", [c.graph.node("Cast", [c.input()], f"{c.name}.bool", to=BOOL)], f"{c.name}.int", to=INT32
        )
        found = reduced(c, op, integers, dims_of(c), bool(c["keepdim"]), f"{c.name}.reduced")
        return c.write("Cast", found, to=BOOL)

    return write


def _arg(op: str) -> Write:
    def write(c: OpContext) -> str:
        if c["dim"] is not None:
            return c.write(op, c.input(), axis=c["dim"], keepdims=int(c["keepdim"]))
        flat = c.graph.node("Reshape", [c.input(), c.graph.integers(-1, name=f"{c.name}.flat_shape")], f"{c.name}.flat")
        return c.write(op, flat, axis=0, keepdims=0)

    return write


def _squares(c: OpContext) -> tuple[str, list[str]]:
    # The mean with its axes kept, and the dividend and divisor of the variance; a mean of squares needs no count.
    g, dims, keepdim = c.graph, dims_of(c), bool(c["keepdim"])
    sizes = [c.shape().dims[d] for d in dims]
    mean = reduced(c, "ReduceMean", c.input(), dims, True, f"{c.name}.mean")
    deviations = g.node("Sub", [c.input(), mean], f"{c.name}.centred")
    if c["correction"] == 0 and not all(isinstance(n, int) for n in sizes):
        squares = g.node("Mul", [deviations, deviations], f"{c.name}.squares")
        return mean, [reduced(c, "ReduceMean", squares, dims, keepdim, f"{c.name}.mean_square"), g.number(1.0, f"{c.name}.one")]
    count = math.prod(known(c, n) for n in sizes)
    total = reduced(c, "ReduceSumSquare", deviations, dims, keepdim, f"{c.name}.squares")
    return mean, [total, g.number(max(count - float(c["correction"]), 0.0), f"{c.name}.degrees")]


def _variance(root: bool) -> Write:
    def write(c: OpContext) -> str:
        _, parts = _squares(c)
        return c.write("Sqrt", c.graph.node("Div", parts, f"{c.name}.var")) if root else c.write("Div", *parts)

    return write


def _moments(root: bool) -> Callable[[OpContext], list[str]]:
    def write(c: OpContext) -> list[str]:
        g, (mean, parts) = c.graph, _squares(c)
        variance = g.node("Div", parts, f"{c.name}.var")
        if not c["keepdim"]:
            mean = g.node("Squeeze", [mean, g.integers(*dims_of(c), name=f"{c.name}.gone")], f"{c.name}.mean_alone")
        return [g.node("Sqrt", [variance], f"{c.name}.std") if root else variance, mean]

    return write


def norm_along(c: OpContext, value: str, order: float, dims: list[int], keepdim: bool, name: str) -> str:
    """Write the norm of order 1 or 2 along some axes.

    Raises:
        DeployError: another order.
    """
    if order not in (1, 2):
        do = "Write it with abs, pow and sum."
        raise DeployError(where=f"op {c.name!r}", found=f"a norm of order {order}", wanted="order 1 or 2", do=do)
    return reduced(c, f"ReduceL{int(order)}", value, dims, keepdim, name)


def _vector_norm(c: OpContext) -> str:
    return norm_along(c, c.input(), c["ord"], dims_of(c), bool(c["keepdim"]), c.name)


def _topk(c: OpContext) -> list[str]:
    count = c.graph.integers(c["k"], name=f"{c.name}.k")
    names = [f"{c.name}.{n}" for n in ("values", "indices")]
    return c.graph.many("TopK", [c.input(), count], names, axis=c["dim"], largest=int(c["largest"]), sorted=int(c["sorted"]))


def _sort(c: OpContext, names: Sequence[str] = ()) -> list[str]:
    axis = c["dim"] % c.shape().rank
    count = c.graph.integers(known(c, c.shape().dims[axis]), name=f"{c.name}.k")
    names = names or [f"{c.name}.{n}" for n in ("values", "indices")]
    return c.graph.many("TopK", [c.input(), count], names, axis=axis, largest=int(c["descending"]), sorted=1)


def _argsort(c: OpContext) -> str:
    return _sort(c, [f"{c.name}.values", c.name])[1]


def _along(name: str) -> Callable[[OpContext], list[str]]:
    def write(c: OpContext) -> list[str]:
        keep = bool(c["keepdim"])
        values = reduced(c, f"Reduce{name}", c.input(), [c["dim"]], keep, f"{c.name}.values")
        return [values, c.graph.node(f"Arg{name}", [c.input()], f"{c.name}.indices", axis=c["dim"], keepdims=int(keep))]

    return write


def _cumsum(c: OpContext) -> str:
    return c.write(
        "CumSum", *operands(c, c.result.dtype, "value"), c.graph.constant(np.array(c["dim"], np.int64), f"{c.name}.axis")
    )


def _difference(c: OpContext) -> str:
    g, axis = c.graph, c["dim"] % c.shape("value").rank
    whole = c.input("value")
    if c["prepend"] is not None:
        whole = g.node("Concat", [c.input("prepend"), whole], f"{c.name}.whole", axis=axis)
    parts = []
    for word, ends in (("later", (1, 2**62)), ("earlier", (0, -1))):
        vectors = [
            g.integers(v, name=f"{c.name}.{word}.{n}") for v, n in zip((*ends, axis), ("start", "end", "axis"), strict=True)
        ]
        parts.append(g.node("Slice", [whole, *vectors], f"{c.name}.{word}"))
    return c.write("Sub", *parts)


def _accumulated(op: str) -> Write:
    # Booleans and int32 become int64, as in torch.
    def write(c: OpContext) -> str:
        given = tuple(range(c.shape().rank)) if c["dim"] is None else c["dim"]
        axes = given if isinstance(given, list | tuple) else (given,)
        return reduced(c, op, operand(c, "input", c.result.dtype), list(axes), bool(c["keepdim"]))

    return write


WRITERS: dict[str, Writer] = {
    "mean": _accumulated("ReduceMean"), "sum": _accumulated("ReduceSum"), "prod": _accumulated("ReduceProd"),
    "amax": _reduce("ReduceMax"), "amin": _reduce("ReduceMin"), "logsumexp": _reduce("ReduceLogSumExp"),
    "any": _logical("ReduceMax"), "all": _logical("ReduceMin"), "argmax": _arg("ArgMax"), "argmin": _arg("ArgMin"),
    "max": _along("Max"),
    "min": _along("Min"), "var": _variance(False), "std": _variance(True), "var_mean": _moments(False),
    "std_mean": _moments(True),
    "vector_norm": _vector_norm, "topk": _topk, "sort": _sort, "argsort": _argsort, "cumsum": _cumsum,
    "difference": _difference,
}  # fmt: skip
"""The writers of this family, by kind."""
