"""Write RMS norms, which the opset of the Q/DQ model has no operator for."""

from __future__ import annotations

import math

import numpy as np
import onnx

from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.writer import Writer
from qfunc.lowering.qdq.qparams import Array
from qfunc.targets.tosa.composed.norms import write_norm


def rms_norm(writer: Writer, nodes: list[onnx.NodeProto]) -> None:
    """Write x / sqrt(mean(x * x) + eps) * weight: the nodes Mul, ReduceMean, Add, Sqrt, Div and perhaps Mul."""
    square, mean, shifted, _, quotient, *rest = nodes
    product = next((n for n in rest if n.op_type == "Mul"), None)
    weight = None if product is None else next(n for name in product.input if (n := _number(writer, name)) is not None)
    final = OpContext(writer, quotient if product is None else product)
    rank = len(final.shape)
    axis = min(int(a) % rank for a in np.ravel(_constant(writer, mean.input[1])))
    writer.done.update(node.output[0] for node in nodes[: 5 if product is None else 6])
    scale = None if weight is None else weight.reshape([1] * (rank - weight.ndim) + list(weight.shape))
    rows, epsilon = (
        [*final.shape[:axis], math.prod(final.shape[axis:])],
        float(np.ravel(_constant(writer, shifted.input[1]))[0]),
    )
    write_norm(final, str(square.input[0]), rows, scale, None, centred=False, epsilon=epsilon)


def _number(writer: Writer, name: str) -> Array | None:
    folded = writer.folded.get(name)
    return writer.source.constants.get(name) if folded is None else folded


def _constant(writer: Writer, name: str) -> Array:
    value = _number(writer, name)
    assert value is not None
    return value
