"""Recognize the nodes of a gated linear unit, which ONNX has no operator for, and write them as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.nhwc.writer import Writer
from qfunc.numerics.kernels.activations import GATE_BITS, gate_table
from qfunc.targets.tosa.builder import TosaBuilder
from qfunc.targets.tosa.composed.integers import Integers
from qfunc.targets.tosa.images import write_slice
from qfunc.targets.tosa.linear import max_magnitude
from qfunc.targets.tosa.rescale import multiplier, qparams_of, to_codes


def glu(other: Callable[[Writer, onnx.NodeProto], None]) -> Callable[[OpContext], None]:
    """Return the writer of Split: of the halves a and b in a * sigmoid(b) as GLU, and of others by `other`."""

    def write(step: OpContext) -> None:
        nodes = _nodes(step)
        if nodes is None:
            return other(step.writer, step.node)
        final, given = OpContext(step.writer, nodes[-1]), step.writer.tensor(step.node.input[0])
        on_codes = given.qparams is not None and final.on_codes()
        x = step.writer.plain(step.writer.stored(given) if on_codes else step.writer.real(given))
        step.writer.done.update(name for node in nodes for name in node.output)
        final.file.operator("GLU", [x], [final.result(final.shape)], axis=int(step.attribute("axis", 0)) % len(x.shape))

    return write


def _nodes(step: OpContext) -> list[onnx.NodeProto] | None:
    value, gate = step.node.output if len(step.node.output) == 2 else ("", "")
    curve, product = step.source.only_reader(gate), step.source.only_reader(value)
    if curve is None or product is None or curve.op_type != "Sigmoid" or product.op_type != "Mul":
        return None
    same = step.source.only_reader(curve.output[0]) is product and {*product.input} == {value, curve.output[0]}
    return [step.node, curve, product] if same else None


def write_glu(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write the operators of a gated linear unit: see `specs.GluTable`."""
    (x,), axis, i = inputs, fields["axis"], Integers(graph, out.name, len(out.shape))
    scale, zero = qparams_of(x)
    halves = []
    for k in (0, 1):
        halves.append(graph.tensor_like(x, f"{out.name}.half{k}", out.shape))
        write_slice(graph, x, halves[-1], [k * out.shape[axis] if j == axis else 0 for j in range(len(out.shape))])
    acc = i.product(i.wide(halves[0], zero), i.from_table(gate_table(scale, zero).tolist(), halves[1]))
    pair = multiplier(np.asarray(scale / qparams_of(out)[0] * 2.0**-GATE_BITS))
    to_codes(graph, acc, out, pair, max_magnitude(x) * 2**GATE_BITS, {})


__all__ = ["glu", "write_glu"]
