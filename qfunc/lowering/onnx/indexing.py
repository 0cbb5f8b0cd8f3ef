"""Write indexing, gathering, one-hot and embedding as ONNX."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from qfunc.errors import DeployError
from qfunc.lowering.onnx.context import OpContext
from qfunc.lowering.onnx.creation import operands
from qfunc.lowering.onnx.dynamic_shapes import sizes, vector
from qfunc.lowering.onnx.shape_inference import Shape


def _where(c: OpContext) -> str:
    given = [*operands(c, torch.bool, "condition"), *operands(c, c.result.dtype, "input", "other")]
    if c.result.dtype != torch.float32:
        return c.write("Where", *given)
    # A copy behind it: ONNX Runtime would choose among codes, also where one of the values has none.
    return c.write("Max", c.graph.node("Where", given, f"{c.name}.chosen"))


def _triangle(upper: int) -> Callable[[OpContext], str]:
    def write(c: OpContext) -> str:
        offset = c.graph.constant(np.array(c["diagonal"], np.int64), f"{c.name}.diagonal")
        return c.write("Trilu", c.input("value"), offset, upper=upper)

    return write


def _index(c: OpContext) -> str:
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


def _gather(c: OpContext) -> str:
    return c.write("GatherElements", c.input(), c.input("index"), axis=c["dim"])


def _element(c: OpContext) -> int:
    return {torch.int64: 7, torch.int32: 6, torch.float32: 1}.get(c.result.dtype, 7)


def _embedding(c: OpContext) -> str:
    return c.write("Gather", c.input("weight"), c.input("indices"), axis=0)


def _take(c: OpContext) -> str:
    places = c.graph.constant(np.array(c["places"], np.int64), f"{c.name}.places")
    return c.write("Gather", c.input(), places, axis=c["dim"])


def _one_hot(c: OpContext) -> str:
    g = c.graph
    depth = g.constant(np.array(c["num_classes"], np.int64), f"{c.name}.depth")
    return c.write("OneHot", c.input("indices"), depth, g.constant(np.array([0, 1], np.int64), f"{c.name}.values"), axis=-1)
