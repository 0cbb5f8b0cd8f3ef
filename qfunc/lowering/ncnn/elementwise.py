"""Ops on each entry as ncnn's layers, in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qfunc.lowering.ncnn.builder import Blob, floats
from qfunc.lowering.ncnn.writer import OpContext
from qfunc.lowering.qdq_reader import Array

ENDS = (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max))


def binary(op: int, reverse: int) -> Callable[[OpContext], None]:
    """Return the writer of the BinaryOp with that number; `reverse` is its number with the operands swapped."""

    def write(step: OpContext) -> None:
        numbers = [step.constant_input(i) for i in (0, 1)]
        for place, number in enumerate(numbers):
            if number is not None and number.value.size == 1 and numbers[1 - place] is None:
                x = _ranked(step, step.input(1 - place), len(step.shape))
                value = float(number.real.reshape(()))
                return step.write_result("BinaryOp", x, p0=op if place else reverse, p1=1, p2=value)
        rank = len(step.shape)
        step.write_result("BinaryOp", *(_operand(step, i, rank) for i in (0, 1)), p0=op)
        return None

    return write


def power(step: OpContext) -> None:
    """Write a square or a power. BinaryOp is NaN for a negative base.

    Raises:
        DeployError: an integer exponent other than 2, which negative bases have a power of.
    """
    exponent = step.constant_input(1)
    number = float(exponent.real.reshape(())) if exponent is not None and exponent.value.size == 1 else 0.5
    if number == 2:
        return step.write_result("UnaryOp", step.input(), p0=4)
    if number == int(number):
        raise step.refuse(f"a power of {number:g}", "2 or a fraction: ncnn's power of negative values is NaN", "Multiply.")
    return binary(6, 9)(step)


def _operand(step: OpContext, index: int, rank: int) -> Blob:
    operand = step.constant_input(index)
    if operand is None:
        return _ranked(step, step.input(index), rank)
    value = operand.real
    value = value[0] if value.ndim > rank and value.shape[0] == 1 else value
    return step.file.constant(step.node.input[index], value.reshape((1,) * (rank - value.ndim) + value.shape))


def _ranked(step: OpContext, blob: Blob, rank: int) -> Blob:
    # ncnn has other broadcasting rules than ONNX for blobs of different ranks.
    return step.reshaped(blob, (1,) * (rank - len(blob.shape)) + blob.shape, f"{blob.name.rpartition('.')[2]}.wide")


def unary(kind: str, **parameters: Any) -> Callable[[OpContext], None]:
    """Return the writer of a layer with one input."""

    def write(step: OpContext) -> None:
        step.write_result(kind, step.input(), **parameters)

    return write


def clip(step: OpContext) -> None:
    """Write Clip, with one bound or two."""
    found = step.source.bounds(step.node)
    least, most = (e if v is None else v for v, e in zip(found, ENDS, strict=True))
    step.write_result("Clip", step.input(), p0=float(least), p1=float(most))


def leaky_relu(step: OpContext) -> None:
    """Write ReLU with a slope."""
    step.write_result("ReLU", step.input(), p0=float(step.attribute("alpha", 0.01)))


def elu(step: OpContext) -> None:
    """Write ELU."""
    step.write_result("ELU", step.input(), p0=float(step.attribute("alpha", 1.0)))


def selu(step: OpContext) -> None:
    """SELU."""
    alpha, gamma = (float(step.attribute(name, value)) for name, value in (("alpha", 1.67326319), ("gamma", 1.05070102)))
    step.write_result("SELU", step.input(), p0=alpha, p1=gamma)


def hard_sigmoid(step: OpContext) -> None:
    """Write HardSigmoid."""
    step.write_result(
        "HardSigmoid", step.input(), p0=float(step.attribute("alpha", 0.2)), p1=float(step.attribute("beta", 0.5))
    )


def gelu(step: OpContext) -> None:
    """Write GELU, by the error function or by tanh."""
    step.write_result("GELU", step.input(), p0=int(step.attribute("approximate", b"none") == b"tanh"))


def softmax(step: OpContext) -> None:
    """Write Softmax along an axis after the batch."""
    step.write_result("Softmax", step.input(), p0=axis_of(step, int(step.attribute("axis", -1))), p1=1)


def axis_of(step: OpContext, axis: int, index: int = 0) -> int:
    """Return the axis of the blob for an axis of the model's tensor.

    Raises:
        DeployError: the axis is the batch.
    """
    full = len(step.source.shape(step.node.input[index], step.node.name))
    dropped = full - len(step.writer.blob(step.node.input[index]).shape)
    place = axis % full - dropped
    if place < 0:
        raise step.refuse("an op along the batch", "another axis", "Use an axis after the batch.")
    return place


def prelu(step: OpContext) -> None:
    """Write PReLU with a slope for each channel, or one."""
    slopes = step.constant_input(1)
    if slopes is None:
        raise step.refuse("slopes that are computed", "a constant", "Compute them once, outside the model.")
    _weighted(step, "PReLU", slopes.real.ravel())


def _weighted(step: OpContext, kind: str, slope: Array) -> None:
    blob = step.file.layer(kind, [step.input()], step.output, step.shape, {0: slope.size}, weights=[floats(slope)])
    step.keep(blob)


__all__ = [
    "axis_of", "binary", "clip", "elu", "gelu", "hard_sigmoid", "leaky_relu", "power", "prelu", "selu", "softmax", "unary",
]  # fmt: skip
