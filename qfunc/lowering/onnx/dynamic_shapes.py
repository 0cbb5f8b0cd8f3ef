"""Sizes that vary from call to call, in ONNX: read from the model's inputs, or computed from such sizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from qfunc.errors import DeployError
from qfunc.lowering.onnx.context import OpContext
from qfunc.lowering.onnx.shape_inference import Shape, Varying
from qfunc.ops.indexing import element

_ARITHMETIC = {
    operator.add: "Add", operator.sub: "Sub", operator.mul: "Mul", operator.floordiv: "Div", operator.neg: "Neg",
    operator.mod: "Mod",
    torch.sym_max: "Max", torch.sym_min: "Min",
}  # fmt: skip


def number(c: OpContext, value: Any) -> Any:
    """Return a size or index: a plain value if it is always the same, else `Varying` or the node that computes it."""
    if not isinstance(value, fx.Node):
        return value
    found = c.shapes[value.name]
    return value if isinstance(found, Shape | Varying) else found


def vector(c: OpContext, entries: Sequence[Any], name: str) -> str:
    """Return an int64 vector of sizes: a constant, or one that the model computes.

    Raises:
        DeployError: a size that is not computed from sizes by +, -, *, // and %.
    """
    known = [number(c, e) for e in entries]
    if all(isinstance(e, int) for e in known):
        return c.graph.integers(*known, name=name)
    pieces = [_piece(c, e, f"{name}.{k}") for k, e in enumerate(known)]
    return pieces[0] if len(pieces) == 1 else c.graph.node("Concat", pieces, name, axis=0)


def _piece(c: OpContext, value: Any, name: str) -> str:
    # A vector of one number.
    value = number(c, value)
    if isinstance(value, int):
        return c.graph.integers(value, name=name)
    tried = value.tried if isinstance(value, Varying) else getattr(c.shapes[value.name], "tried", ())
    if (size := c.graph.size(tried)) is not None:
        return size
    if isinstance(value, fx.Node) and value.target in _ARITHMETIC:
        parts = [_piece(c, a, f"{name}.{k}") for k, a in enumerate(value.args)]
        if value.target is operator.floordiv:  # ONNX divides towards zero, and its Mod has the sign of the divisor
            parts[0] = c.graph.node("Sub", [parts[0], c.graph.node("Mod", parts, f"{name}.rest")], f"{name}.whole")
        return c.graph.node(_ARITHMETIC[value.target], parts, name)
    if isinstance(value, fx.Node) and (place := _axis(value)) is not None:
        shape = c.graph.node("Shape", [c.read(place[0])], f"{name}.shape")
        return c.graph.node("Gather", [shape, c.graph.integers(place[1], name=f"{name}.axis")], name)
    if (size := c.graph.inner_size(tried)) is not None:
        return size
    found = f"a size computed by {value.format_node()}" if isinstance(value, fx.Node) else f"a size that varied: {tried}"
    raise DeployError(
        where=f"op {c.name!r}",
        found=found,
        wanted="a size of an input, or +, -, *, // and % of sizes",
        do="Export with that axis fixed, or compute the size from sizes of the inputs.",
    )


def _axis(node: fx.Node) -> tuple[fx.Node, int] | None:
    # x.size(1), or x.size()[1].
    if node.target is torch.Tensor.size and len(node.args) == 2:
        return node.args[0], int(node.args[1])  # type: ignore[return-value, arg-type]
    if node.target is element and isinstance(node.args[0], fx.Node) and node.args[0].target is torch.Tensor.size:
        return node.args[0].args[0], int(node.args[1])  # type: ignore[return-value, arg-type]
    return None


def shape_operand(c: OpContext, name: str, source: Shape | None = None) -> str:
    """Return the shape operand of a Reshape to the op's result: 0 copies an axis of `source`, -1 stands for one that varies.

    Raises:
        DeployError: two axes vary that are no sizes of the inputs.
    """
    dims: list[Any] = list(c.result.dims)
    varying = [k for k, d in enumerate(dims) if d is None]
    if len(varying) > 1:
        # Copy leading axes that do not change: in most reshapes the batch.
        for k in varying[:-1] if _copied(c, source, varying[-1]) is None else varying:
            dims[k] = _copied(c, source, k)
        varying = [k for k, d in enumerate(dims) if d is None]
    if len(varying) > 1:
        readable = [k for k in varying if c.graph.size(c.result.tried[k]) is not None]
        for k in readable[: len(varying) - 1]:
            dims[k] = Varying(c.result.tried[k])
        varying = [k for k, d in enumerate(dims) if d is None]
    if len(varying) > 1:
        found, wanted = f"a reshape to {c.result.dims}, where None varies with the batch", "at most one such axis"
        raise DeployError(where=f"op {c.name!r}", found=found, wanted=wanted, do="Keep the batch on one axis.")
    return vector(c, [-1 if d is None else d for d in dims], name)


def _copied(c: OpContext, source: Shape | None, axis: int) -> int | None:
    same = source is not None and axis < source.rank and source.tried[axis] == c.result.tried[axis]
    return 0 if same else None


def sizes(c: OpContext, shape: Shape) -> list[Any]:
    """Return the axes of a shape as entries of `vector`."""
    return [Varying(t) if d is None else d for d, t in zip(shape.dims, shape.tried, strict=True)]


def causal(c: OpContext, scores: str, dims: Sequence[int | None]) -> tuple[str, list[str]]:
    """Return the op and the operands that mask the entries of scores [..., L, S] after the diagonal.

    Args:
        dims: L and S; None where one varies, so that the model computes the diagonal.
    """
    g, name = c.graph, c.name
    if all(d is not None for d in dims):
        mask = np.where(np.tril(np.ones([int(d or 0) for d in dims], bool)), 0, -np.inf).astype(np.float32)
        return "Add", [scores, g.constant(mask, f"{name}.mask")]
    shape = g.node("Shape", [scores], f"{name}.shape")
    zero, one = (g.constant(np.array(v, dtype=np.int64), f"{name}.{n}") for v, n in ((0, "zero"), (1, "one")))
    rows, columns = (
        g.node("Range", [zero, g.node("Gather", [shape, g.constant(np.array(axis, dtype=np.int64), f"{name}.{n}_axis")],
                                      f"{name}.{n}_count"), one], f"{name}.{n}")
        for axis, n in ((-2, "rows"), (-1, "columns"))
    )  # fmt: skip
    rows = g.node("Unsqueeze", [rows, g.integers(1, name=f"{name}.second_axis")], f"{name}.rows_down")
    late = g.node("Greater", [columns, rows], f"{name}.late")
    return "Where", [late, g.number(-math.inf, f"{name}.drop"), scores]
