"""Write choices between two tensors as layers of ncnn, which has no booleans: a mask is 0 and 1 in float32."""

from __future__ import annotations

import numpy as np

from qfunc.lowering.ncnn.elementwise import binary, operand, operand_shapes
from qfunc.lowering.ncnn.writer import OpContext
from qfunc.lowering.qdq_reader import copies

__all__ = ["where"]


def where(step: OpContext) -> None:
    """Write m a + (1 - m) b for a mask m of 0 and 1, which is a constant or compares real values.

    Raises:
        DeployError: another condition, or infinite numbers other than those of a mask before a softmax.
    """
    values = [step.constant_input(i) for i in (1, 2)]
    infinite = any(v is not None and not np.isfinite(v.real).all() for v in values)
    if infinite and not _reaches_softmax_only(step):
        raise step.refuse("a choice of infinite numbers", "finite ones: infinity times 0 is NaN", "Use -1e9.")
    if step.constant_input(0) is None:
        _mask(step, str(step.node.input[0]))
    shapes = operand_shapes(step, (0, 1, 2))
    chosen, *pair = (operand(step, i, shape) for i, shape in enumerate(shapes))
    others = step.layer("BinaryOp", [chosen], "others", chosen.shape, p0=7, p1=1, p2=1.0)
    parts = []
    for name, mask, value in zip(("chosen", "rest"), (chosen, others), pair, strict=True):
        shape = tuple(map(max, mask.shape, value.shape))
        parts.append(step.layer("BinaryOp", [mask, value], name, shape, p0=2))
    made = step.layer("BinaryOp", parts, "", tuple(map(max, *(p.shape for p in parts))), p0=0)
    step.keep(step.reshaped(made, step.shape, "flat"))


def _reaches_softmax_only(step: OpContext) -> bool:
    names = [step.output]
    for name in names:
        readers = step.source.readers.get(name, [])
        if name in step.source.outputs or any(r.op_type != "Softmax" and not copies(r) for r in readers):
            return False
        names += [r.output[0] for r in readers if copies(r)]
    return True


def _mask(step: OpContext, name: str) -> None:
    # Write a tensor of booleans as 0 and 1: Threshold is 1 where the difference of the operands is above 0.
    node = step.source.producers.get(name)
    if name in step.writer.blobs or name in step.writer.constants:
        return
    if node is None or node.op_type not in (*_DIFFERENCES, *_LOGIC):
        found = name if node is None else node.op_type
        raise step.refuse(f"a choice by {found}", "comparisons of real values", "Compare by < or >.")
    inner = OpContext(step.writer, node)
    if node.op_type in _LOGIC:
        for operand in node.input:
            _mask(step, operand)
        if node.op_type == "Not":
            mask = inner.input()
            return inner.keep(inner.layer("BinaryOp", [mask], "", mask.shape, p0=7, p1=1, p2=1.0))
        return binary(*_LOGIC[node.op_type])(inner)
    binary(*_DIFFERENCES[node.op_type])(inner)
    difference = inner.writer.blobs[inner.output]
    over = inner.layer("Threshold", [difference], "over", difference.shape, p0=0.0)
    if node.op_type.endswith("OrEqual"):
        over = inner.layer("BinaryOp", [over], "not_over", over.shape, p0=7, p1=1, p2=1.0)
    return inner.keep(over)


_DIFFERENCES = {"Greater": (1, 7), "LessOrEqual": (1, 7), "Less": (7, 1), "GreaterOrEqual": (7, 1)}
_LOGIC = {"Not": (0, 0), "And": (2, 2), "Or": (4, 4)}
