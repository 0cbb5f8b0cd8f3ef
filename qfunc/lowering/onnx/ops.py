"""The table of ONNX writers by op kind: the ONNX text of the op's record, or a function in the file of its family."""

from __future__ import annotations

from qfunc.lowering.onnx import (
    attention,
    creation,
    elementwise,
    image,
    indexing,
    linear,
    normalization,
    pooling,
    recurrent,
    reduction,
    shape,
)
from qfunc.lowering.onnx.formula import Writer, formula
from qfunc.ops.opset import OPS

WRITERS: dict[str, Writer] = {
    **{op.kind: formula(op.onnx) for op in OPS if op.onnx is not None},
    **linear.WRITERS,
    **elementwise.WRITERS,
    **pooling.WRITERS,
    **normalization.WRITERS,
    **attention.WRITERS,
    **shape.WRITERS,
    **indexing.WRITERS,
    **creation.WRITERS,
    **reduction.WRITERS,
    **image.WRITERS,
    **recurrent.WRITERS,
}
"""Op kind -> its writer, which returns the name of the result or, if the op has several, the names of all results."""
