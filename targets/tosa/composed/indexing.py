"""Write embeddings in TOSA: rows of a table of codes, by indices that are an input of the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx

from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.nhwc.writer import Writer
from qfunc.targets.tosa.builder import TosaBuilder
from qfunc.targets.tosa.images import write_reshape


def embedding(other: Callable[[Writer, onnx.NodeProto], None]) -> Callable[[OpContext], None]:
    """Return the writer of Gather: of rows of a constant by an input of indices as GATHER, and by other indices as `other`.

    The constant has the codes of the result.
    """

    def write(step: OpContext) -> None:
        table, indices = step.writer.tensor(step.node.input[0]), step.writer.tensors.get(step.node.input[1])
        if table.value is None or table.value.ndim != 2 or indices is None or int(step.attribute("axis", 0)):
            return other(step.writer, step.node)
        step.on_codes()
        step.file.operator("GATHER", [], [step.result(step.shape)], table=step.writer.real(table), indices=indices)

    return write


def gather(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write GATHER, whose table has a batch axis and whose indices have one axis behind it."""
    indices: NhwcTensor = fields["indices"]
    codes = graph.codes_for(fields["table"], out.qparams)
    assert codes.value is not None
    rows = graph.tensor(f"{codes.name}.rows", (1, *codes.shape), codes.qparams, value=codes.value[None])
    count = math.prod(indices.shape)
    flat = graph.int32_tensor(f"{out.name}.indices", (1, count))
    graph.node("RESHAPE", [indices, graph.shape(flat.shape)], flat)
    found = graph.tensor_like(out, "rows", (1, count, codes.shape[1]))
    graph.node("GATHER", [rows, flat], found)
    write_reshape(graph, found, out.shape, out)
