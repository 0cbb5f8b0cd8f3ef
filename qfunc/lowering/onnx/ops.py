"""The table of ONNX writers, op kind -> function: one family a file."""

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
from qfunc.lowering.onnx.formula import Writer

WRITERS: dict[str, Writer] = {
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
"""A writer returns the name of the op's result, or the names of all results of an op that has several."""

__all__ = ["WRITERS"]
