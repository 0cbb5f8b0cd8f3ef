"""How ops on positions, masks and types are written in ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import fx

from qfunc.errors import DeployError
from qfunc.lowering.onnx_call import Call, normalized
from qfunc.lowering.onnx_graph import element_type
from qfunc.lowering.onnx_sizes import number, sizes, vector
from qfunc.lowering.shapes import Shape

_COMPARED = {torch.ge: "GreaterOrEqual", torch.gt: "Greater", torch.le: "LessOrEqual", torch.lt: "Less", torch.eq: "Equal"}
_LOGIC = {
    torch.bitwise_and: "And",
    torch.bitwise_or: "Or",
    torch.bitwise_xor: "Xor",
    torch.logical_and: "And",
    torch.logical_or: "Or",
}


def operands(c: Call, dtype: torch.dtype, *parameters: str) -> list[str]:
    """Tensor arguments in one type, as torch promotes them; numbers and sizes become tensors."""
    return [_operand(c, p, dtype) for p in parameters]


def _operand(c: Call, parameter: str, dtype: torch.dtype) -> str:
    value = number(c, c[parameter])
    if not isinstance(value, fx.Node):
        return c.graph.constant(torch.tensor(value, dtype=dtype), f"{c.name}.{parameter}")
    shape = c.shapes[value.name]
    held = shape.dtype if isinstance(shape, Shape) else torch.int64
    name = c.read(value) if isinstance(shape, Shape) else vector(c, [value], f"{c.name}.{parameter}")
    return name if held == dtype else c.graph.node("Cast", [name], f"{c.name}.{parameter}_cast", to=element_type(dtype))


def _promoted(c: Call, *parameters: str) -> torch.dtype:
    values = [number(c, c[p]) for p in parameters]
    held = [c.shapes[v.name].dtype for v in values if isinstance(v, fx.Node) and isinstance(c.shapes[v.name], Shape)]
    wide = held[0] if len(held) == 1 else torch.promote_types(*held)
    real = any(isinstance(v, float) for v in values) and not wide.is_floating_point
    plain = any(isinstance(v, int) and not isinstance(v, bool) for v in values) and wide == torch.bool
    return torch.float32 if real else torch.int64 if plain else wide


def _compare(c: Call) -> str:
    given = operands(c, _promoted(c, "a", "b"), "a", "b")
    if c.node.target is torch.ne:
        return c.write("Not", c.graph.node("Equal", given, f"{c.name}.equal"))
    return c.write(_COMPARED[c.node.target], *given)  # type: ignore[index]


def _logic(c: Call) -> str:
    if c.result.dtype != torch.bool:
        do = "Compare first, so that masks are of type bool."
        raise DeployError(where=f"op {c.name!r}", found=f"bits of {c.result.dtype}", wanted="masks of type torch.bool", do=do)
    return c.write(_LOGIC[c.node.target], *operands(c, torch.bool, "a", "b"))  # type: ignore[index]


def _cast(c: Call) -> str:
    return c.write("Cast", c.input("value"), to=element_type(c.result.dtype))


def _where(c: Call) -> str:
    given = [*operands(c, torch.bool, "condition"), *operands(c, c.result.dtype, "input", "other")]
    if c.result.dtype != torch.float32:
        return c.write("Where", *given)
    # A copy behind it: ONNX Runtime would choose among codes, also where one of the values has none.
    return c.write("Max", c.graph.node("Where", given, f"{c.name}.chosen"))


def _cumsum(c: Call) -> str:
    return c.write(
        "CumSum", *operands(c, c.result.dtype, "value"), c.graph.constant(np.array(c["dim"], np.int64), f"{c.name}.axis")
    )


def _difference(c: Call) -> str:
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


def _triangle(upper: int) -> Callable[[Call], str]:
    def write(c: Call) -> str:
        offset = c.graph.constant(np.array(c["diagonal"], np.int64), f"{c.name}.diagonal")
        return c.write("Trilu", c.input("value"), offset, upper=upper)

    return write


def _index(c: Call) -> str:
    given = [(k, i) for k, i in enumerate(c["indices"]) if i is not None]
    axes = [k for k, _ in given]
    if len(given) == 1:
        return c.write("Gather", c.input(), c.read(given[0][1]), axis=axes[0])
    if axes != list(range(len(given))):
        do = "Index leading axes, or one axis at a time."
        raise DeployError(
            where=f"op {c.name!r}", found=f"positions on the axes {axes}", wanted="one axis, or the first ones", do=do
        )
    # Positions of several axes are broadcast to one shape, and stand side by side on a last axis.
    g, rank = c.graph, max(c.shapes[i.name].rank for _, i in given)
    shape = Shape(c.result.dims[:rank], torch.int64, c.result.tried[:rank])
    target = vector(c, sizes(c, shape), f"{c.name}.positions_shape")
    columns = []
    for k, node in given:
        full = g.node("Expand", [c.read(node), target], f"{c.name}.positions_{k}")
        columns.append(g.node("Unsqueeze", [full, g.integers(-1, name=f"{c.name}.last")], f"{c.name}.column_{k}"))
    return c.write("GatherND", c.input(), g.node("Concat", columns, f"{c.name}.positions", axis=-1))


def _gather(c: Call) -> str:
    return c.write("GatherElements", c.input(), c.input("index"), axis=c["dim"])


def _roll(c: Call) -> str:
    g, value = c.graph, c.input()
    steps = list(zip(c["shifts"], c["dims"], strict=True))
    for k, (shift, dim) in enumerate(steps):
        ends = []
        for part, (start, stop) in enumerate(((-shift, 2**62), (0, -shift))):
            vectors = [
                g.integers(v, name=f"{c.name}.{k}.{part}.{n}") for v, n in ((start, "start"), (stop, "end"), (dim, "axis"))
            ]
            ends.append(g.node("Slice", [value, *vectors], f"{c.name}.{k}.part_{part}"))
        value = g.node("Concat", ends, c.name if k == len(steps) - 1 else f"{c.name}.{k}", axis=dim)
    return value


def _repeat(c: Call) -> str:
    g, source, more = c.graph, c.input(), len(c["repeats"]) - c.shape().rank
    if more:
        source = g.node("Unsqueeze", [source, g.integers(*range(more), name=f"{c.name}.axes")], f"{c.name}.unsqueezed")
    return c.write("Tile", source, vector(c, c["repeats"], f"{c.name}.repeats"))


def _arange(c: Call) -> str:
    given = [number(c, c[p]) for p in ("start", "end", "step")]
    if not any(isinstance(v, fx.Node) for v in given):
        return c.graph.constant(torch.arange(*given, dtype=c.result.dtype), c.name)
    if any(isinstance(v, float) for v in given):
        do = "Multiply an arange of whole numbers."
        raise DeployError(where=f"op {c.name!r}", found=f"arange{tuple(given)}", wanted="whole numbers", do=do)
    axes = c.graph.integers(0, name=f"{c.name}.axes")
    ends = [
        c.graph.node("Squeeze", [vector(c, [v], f"{c.name}.{p}"), axes], f"{c.name}.{p}_number")
        for p, v in zip(("start", "end", "step"), given, strict=True)
    ]
    if c.result.dtype == torch.int64:
        return c.write("Range", *ends)
    return c.write("Cast", c.graph.node("Range", ends, f"{c.name}.range"), to=element_type(c.result.dtype))


def _full(c: Call) -> str:
    value = _operand(c, "value", c.result.dtype)
    return c.write("Expand", value, vector(c, sizes(c, c.result), f"{c.name}.shape"))


def _rms_norm(c: Call) -> str:
    g, name = c.graph, c.name
    axes = list(range(-normalized(c), 0))
    square = g.node("Mul", [c.input(), c.input()], f"{name}.square")
    if g.opset < 18:
        mean = g.node("ReduceMean", [square], f"{name}.mean", axes=axes, keepdims=1)
    else:
        mean = g.node("ReduceMean", [square, g.integers(*axes, name=f"{name}.axes")], f"{name}.mean", keepdims=1)
    eps = torch.finfo(c.result.dtype).eps if c["eps"] is None else c["eps"]
    spread = g.node("Sqrt", [g.node("Add", [mean, g.number(eps, f"{name}.eps")], f"{name}.shifted")], f"{name}.rms")
    if c["weight"] is None:
        return c.write("Div", c.input(), spread)
    return c.write("Mul", g.node("Div", [c.input(), spread], f"{name}.normed"), c.input("weight"))


def _unary(op: str, parameter: str = "input") -> Callable[[Call], str]:
    return lambda c: c.write(op, c.input(parameter))


INDEX_WRITERS: dict[str, Callable[[Call], Any]] = {
    "compare": _compare, "logic": _logic, "cast": _cast, "where": _where, "cumsum": _cumsum, "tril": _triangle(0),
    "not": lambda c: c.write("Not", *operands(c, torch.bool, "value")),
    "difference": _difference,
    "detach": _unary("Identity"), "triu": _triangle(1), "index": _index, "gather": _gather,
    "roll": _roll, "repeat": _repeat, "arange": _arange,
    "full": _full, "rms_norm": _rms_norm, "sin": _unary("Sin"), "cos": _unary("Cos"), "log": _unary("Log"),
    "erf": _unary("Erf"), "floor": _unary("Floor"), "reciprocal": _unary("Reciprocal"),
}  # fmt: skip
"""The writers of this file, by kind."""
