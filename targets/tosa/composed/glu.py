"""Write gated linear units, which ONNX has no operator for."""

from __future__ import annotations

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


def glu(writer: Writer, nodes: list[onnx.NodeProto]) -> None:
    """Write a * sigmoid(b) of the halves a and b: the nodes Split, Sigmoid and Mul."""
    split, _, product = nodes[:3]
    final, given = OpContext(writer, product), writer.tensor(split.input[0])
    final.on_codes()
    x = writer.plain(writer.stored(given))
    writer.done.update(name for node in nodes[:3] for name in node.output)
    axis = int(final.source.attribute(split, "axis", 0)) % len(x.shape)
    final.file.operator("GLU", [x], [final.result(final.shape)], axis=axis)


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
