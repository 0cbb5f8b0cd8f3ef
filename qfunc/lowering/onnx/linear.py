"""Write convolutions, linear layers, matmuls and einsum as ONNX."""

from __future__ import annotations

from typing import Any

from torch import fx

from qfunc.lowering.onnx.context import OpContext, known, per_axis
from qfunc.lowering.onnx.dynamic_shapes import shape_operand
from qfunc.lowering.onnx.formula import Write
from qfunc.ops.linear import dense


def _einsum(c: OpContext) -> str:
    return c.write("Einsum", *(c.read(n) for n in c["operands"]), equation=c["equation"])


def _conv(c: OpContext) -> str:
    rank = len(c.shapes[c["weight"].name].dims) - 2
    dilation, kernel = per_axis(c["dilation"], rank), list(c.shapes[c["weight"].name].dims[2:])
    attributes: dict[str, Any] = {
        "strides": per_axis(c["stride"], rank),
        "dilations": dilation,
        "group": c["groups"],
        "kernel_shape": kernel,
    }
    if isinstance(c["padding"], str):
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        if c["padding"] == "same":
            attributes["pads"] = [t // 2 for t in total] + [t - t // 2 for t in total]
    else:
        attributes["pads"] = per_axis(c["padding"], rank) * 2
    return c.write("Conv", c.input(), *_weights(c), **attributes)


def _weights(c: OpContext) -> list[str]:
    return [c.input(p) for p in ("weight", "bias") if isinstance(c[p], fx.Node)]


def _conv_transpose(c: OpContext) -> str:
    rank = len(c.shapes[c["weight"].name].dims) - 2
    return c.write(
        "ConvTranspose", c.input(), *_weights(c), strides=per_axis(c["stride"], rank), pads=per_axis(c["padding"], rank) * 2,
        output_padding=per_axis(c["output_padding"], rank), group=c["groups"], dilations=per_axis(c["dilation"], rank),
    )  # fmt: skip


def _linear(c: OpContext) -> str:
    transposed = 0 if c.node.target is dense else 1
    if c.shape().rank == 2:
        return c.write("Gemm", c.input(), *_weights(c), transB=transposed)
    # Gemm accepts matrices only: reshape to rows, multiply, and restore the shape, on codes if the unit has them.
    graph, features = c.graph, c.shape().dims[-1]
    rows = c.quantize_inner(
        graph.node(
            "Reshape", [c.input(), graph.integers(-1, known(c, features), name=f"{c.name}.rows_shape")], f"{c.name}.rows_in"
        ),
        "before",
    )
    product = c.quantize_inner(graph.node("Gemm", [rows, *_weights(c)], f"{c.name}.rows", transB=transposed), "after")
    return c.write("Reshape", product, shape_operand(c, f"{c.name}.shape"))


def _outer(c: OpContext) -> str:
    column = c.graph.node("Unsqueeze", [c.input(), c.graph.integers(1, name=f"{c.name}.axis")], f"{c.name}.column")
    return c.write("Mul", column, c.input("vec2"))


WRITERS: dict[str, Write] = {
    "conv": _conv, "conv_transpose": _conv_transpose, "linear": _linear, "einsum": _einsum, "outer": _outer,
}  # fmt: skip
"""The writers of this family, by kind."""
