"""Recognize the nodes of an RMS norm, which the opset of the Q/DQ model has no operator for, and write them as one norm."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
from attrs import frozen

from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.writer import Writer
from qfunc.lowering.qdq.qparams import Array
from qfunc.targets.tosa.composed.norms import write_norm

_BETWEEN = ("ReduceMean", "Add", "Sqrt", "Div")


@frozen(eq=False)
class _RmsNorm:
    nodes: list[onnx.NodeProto]  # of the product x * x to the result
    axes: list[int]
    epsilon: float
    weight: Array | None


def rms_norm(other: Callable[[Writer, onnx.NodeProto], None]) -> Callable[[OpContext], None]:
    """Return the writer of products: of x * x in x / sqrt(mean(x * x) + eps) * weight as NORM, and of others by `other`."""

    def write(step: OpContext) -> None:
        found = _rms_norm(step)
        if found is None:
            return other(step.writer, step.node)
        final = OpContext(step.writer, found.nodes[-1])
        rank = len(final.shape)
        axis, weight = min(a % rank for a in found.axes), found.weight
        rows = [*final.shape[:axis], math.prod(final.shape[axis:])]
        step.writer.done.update(node.output[0] for node in found.nodes)
        scale = None if weight is None else weight.reshape([1] * (rank - weight.ndim) + list(weight.shape))
        write_norm(final, str(step.node.input[0]), rows, scale, None, centred=False, epsilon=found.epsilon)

    return write


def _rms_norm(step: OpContext) -> _RmsNorm | None:
    source, x, nodes = step.source, step.node.input[0], [step.node]
    if step.node.input[1] != x:
        return None
    for kind in _BETWEEN:
        node = source.only_reader(nodes[-1].output[0])
        if node is None or node.op_type != kind:
            return None
        nodes.append(node)
    _, mean, shifted, _, quotient = nodes
    axes, epsilon = _number(step, mean.input[1]), _number(step, shifted.input[1])
    if axes is None or epsilon is None or np.size(epsilon) != 1 or quotient.input[0] != x:
        return None
    product = source.only_reader(quotient.output[0])
    weight = None
    if product is not None and product.op_type == "Mul":
        others = [name for name in product.input if name != quotient.output[0]]
        weight = _number(step, others[0]) if others else None
        nodes += [] if weight is None else [product]
    return _RmsNorm(nodes, [int(a) for a in np.ravel(axes)], float(np.ravel(epsilon)[0]), weight)


def _number(step: OpContext, name: str) -> Array | None:
    folded = step.writer.folded.get(name)
    return step.source.constants.get(name) if folded is None else folded


__all__ = ["rms_norm"]
