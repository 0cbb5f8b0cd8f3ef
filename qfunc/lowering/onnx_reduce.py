"""How reductions, orders and norms are written in ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from qfunc.errors import DeployError
from qfunc.lowering.onnx_call import Call, known

Write = Callable[[Call], str]
BOOL, INT32 = 9, 6  # TensorProto


def dims_of(c: Call, name: str = "dim") -> list[int]:
    """The axes that an op reduces; none given means all."""
    value = c[name]
    dims = [value] if isinstance(value, int) else list(value or range(c.shape().rank))
    return [d % c.shape().rank for d in dims]


def reduced(c: Call, op: str, value: str, dims: list[int], keepdim: bool, name: str = "") -> str:
    """A reduction over some axes, which are attributes in old opsets."""
    axes: dict[str, Any] = {"axes": dims} if c.graph.opset < 18 and op != "ReduceSum" else {}
    inputs = [value] if axes else [value, c.graph.integers(*dims, name=f"{c.name}.axes")]
    return c.graph.node(op, inputs, name or c.name, keepdims=int(keepdim), **axes)


def _reduce(op: str) -> Write:
    return lambda c: reduced(c, op, c.input(), dims_of(c), bool(c["keepdim"]))


def _logical(op: str) -> Write:
    # any and all: the greatest or least of 0 and 1.
    def write(c: Call) -> str:
        held = c.graph.node("Cast", [c.graph.node("Cast", [c.input()], f"{c.name}.bool", to=BOOL)], f"{c.name}.int", to=INT32)
        found = reduced(c, op, held, dims_of(c), bool(c["keepdim"]), f"{c.name}.reduced")
        return c.write("Cast", found, to=BOOL)

    return write


def _arg(op: str) -> Write:
    def write(c: Call) -> str:
        if c["dim"] is not None:
            return c.write(op, c.input(), axis=c["dim"], keepdims=int(c["keepdim"]))
        flat = c.graph.node("Reshape", [c.input(), c.graph.integers(-1, name=f"{c.name}.flat_shape")], f"{c.name}.flat")
        return c.write(op, flat, axis=0, keepdims=0)

    return write


def _squares(c: Call) -> tuple[str, list[str]]:
    # The mean, with its axes, and what is divided to make the variance.
    g, dims = c.graph, dims_of(c)
    count = math.prod(known(c, c.shape().dims[d]) for d in dims)
    mean = reduced(c, "ReduceMean", c.input(), dims, True, f"{c.name}.mean")
    apart = g.node("Sub", [c.input(), mean], f"{c.name}.centred")
    total = reduced(c, "ReduceSumSquare", apart, dims, bool(c["keepdim"]), f"{c.name}.squares")
    return mean, [total, g.number(max(count - float(c["correction"]), 0.0), f"{c.name}.degrees")]


def _variance(root: bool) -> Write:
    def write(c: Call) -> str:
        _, parts = _squares(c)
        return c.write("Sqrt", c.graph.node("Div", parts, f"{c.name}.var")) if root else c.write("Div", *parts)

    return write


def _moments(root: bool) -> Callable[[Call], list[str]]:
    def write(c: Call) -> list[str]:
        g, (mean, parts) = c.graph, _squares(c)
        spread = g.node("Div", parts, f"{c.name}.var")
        if not c["keepdim"]:
            mean = g.node("Squeeze", [mean, g.integers(*dims_of(c), name=f"{c.name}.gone")], f"{c.name}.mean_alone")
        return [g.node("Sqrt", [spread], f"{c.name}.std") if root else spread, mean]

    return write


def _lengths(c: Call, value: str, order: float, dims: list[int], keepdim: bool, name: str) -> str:
    if order not in (1, 2):
        do = "Write it with abs, pow and sum."
        raise DeployError(where=f"op {c.name!r}", found=f"a norm of order {order}", wanted="order 1 or 2", do=do)
    return reduced(c, f"ReduceL{int(order)}", value, dims, keepdim, name)


def _vector_norm(c: Call) -> str:
    return _lengths(c, c.input(), c["ord"], dims_of(c), bool(c["keepdim"]), c.name)


def _normalize(c: Call) -> str:
    lengths = _lengths(c, c.input(), c["p"], dims_of(c), True, f"{c.name}.length")
    return c.write(
        "Div", c.input(), c.graph.node("Max", [lengths, c.graph.number(c["eps"], f"{c.name}.eps")], f"{c.name}.above")
    )


def _cosine(c: Call) -> str:
    g, dims = c.graph, [c["dim"] % c.result.rank + (c["dim"] < 0)]
    least, unit = g.number(c["eps"], f"{c.name}.eps"), []
    for name in ("x1", "x2"):
        length = reduced(c, "ReduceL2", c.input(name), dims, True, f"{c.name}.{name}.length")
        unit.append(
            g.node("Div", [c.input(name), g.node("Max", [length, least], f"{c.name}.{name}.above")], f"{c.name}.{name}")
        )
    return reduced(c, "ReduceSum", g.node("Mul", unit, f"{c.name}.product"), dims, False)


def _topk(c: Call) -> list[str]:
    count = c.graph.integers(c["k"], name=f"{c.name}.k")
    names = [f"{c.name}.{n}" for n in ("values", "indices")]
    return c.graph.many("TopK", [c.input(), count], names, axis=c["dim"], largest=int(c["largest"]), sorted=int(c["sorted"]))


def _sort(c: Call) -> list[str]:
    axis = c["dim"] % c.shape().rank
    count = c.graph.integers(known(c, c.shape().dims[axis]), name=f"{c.name}.k")
    names = [f"{c.name}.{n}" for n in ("values", "indices")]
    return c.graph.many("TopK", [c.input(), count], names, axis=axis, largest=int(c["descending"]), sorted=1)


def _along(name: str) -> Callable[[Call], list[str]]:
    def write(c: Call) -> list[str]:
        keep = bool(c["keepdim"])
        values = reduced(c, f"Reduce{name}", c.input(), [c["dim"]], keep, f"{c.name}.values")
        return [values, c.graph.node(f"Arg{name}", [c.input()], f"{c.name}.indices", axis=c["dim"], keepdims=int(keep))]

    return write


def _unbind(c: Call) -> list[str]:
    axis = c["dim"] % c.shape().rank
    count = known(c, c.shape().dims[axis])
    names, ones = [f"{c.name}.{k}.kept" for k in range(count)], c.graph.integers(*[1] * count, name=f"{c.name}.sizes")
    parts = c.graph.many("Split", [c.input(), ones], names, axis=axis)
    place = c.graph.integers(axis, name=f"{c.name}.axis")
    return [c.graph.node("Squeeze", [p, place], f"{c.name}.{k}") for k, p in enumerate(parts)]


REDUCE_WRITERS: dict[str, Write] = {
    "argmax": _arg("ArgMax"), "argmin": _arg("ArgMin"), "amax": _reduce("ReduceMax"), "amin": _reduce("ReduceMin"),
    "prod": _reduce("ReduceProd"), "logsumexp": _reduce("ReduceLogSumExp"), "any": _logical("ReduceMax"),
    "all": _logical("ReduceMin"), "var": _variance(False), "std": _variance(True), "vector_norm": _vector_norm,
    "normalize": _normalize, "cosine_similarity": _cosine,
}  # fmt: skip
"""The writers of this file, by kind."""

SEVERAL_WRITERS: dict[str, Callable[[Call], list[str]]] = {
    "topk": _topk, "sort": _sort, "max": _along("Max"), "min": _along("Min"), "unbind": _unbind,
    "var_mean": _moments(False), "std_mean": _moments(True),
}  # fmt: skip
"""Writers of ops with several results: the name of each."""
