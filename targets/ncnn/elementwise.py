"""Ops on each entry as ncnn's layers, in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qfunc.lowering.qdq.qparams import Array
from qfunc.lowering.qdq.reader import REAL
from qfunc.targets.ncnn.axes import MOST, batch_axis, merged
from qfunc.targets.ncnn.builder import Blob, floats
from qfunc.targets.ncnn.writer import OpContext

ENDS = (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max))


def binary(op: int, reverse: int) -> Callable[[OpContext], None]:
    """Return the writer of the BinaryOp with that number; `reverse` is its number with the operands swapped."""

    def write(step: OpContext) -> None:
        numbers = [step.constant_input(i) for i in (0, 1)]
        shapes = operand_shapes(step)
        for place, number in enumerate(numbers):
            if number is not None and number.value.size == 1 and numbers[1 - place] is None:
                x = step.input(1 - place)
                x = x if len(step.shape) == 1 else step.reshaped(x, shapes[1 - place], _wide(x))
                value = float(number.real.reshape(()))
                return step.write_result("BinaryOp", x, p0=op if place else reverse, p1=1, p2=value)
        made = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
        result = step.layer("BinaryOp", [operand(step, i, shapes[i]) for i in (0, 1)], "", made, p0=op)
        step.keep(step.reshaped(result, step.shape, "flat"))
        return None

    return write


def power(step: OpContext) -> None:
    """Write a square, a product of equal factors, or a power. BinaryOp is NaN for a negative base.

    Raises:
        DeployError: exponents among which are integers that are not one number from -8 to 8.
    """
    exponent = step.constant_input(1)
    numbers = [0.5] if exponent is None else [float(v) for v in exponent.real.ravel()]
    whole = int(numbers[0])
    if numbers == [2]:
        return step.write_result("UnaryOp", step.input(), p0=4)
    if numbers == [whole] and 0 < abs(whole) <= _FACTORS:
        x, product = step.input(), step.input()
        for i in range(abs(whole) - 1):
            product = step.layer("BinaryOp", [product, x], f"factor_{i}", x.shape, p0=2)
        return step.write_result("UnaryOp", product, p0=15) if whole < 0 else step.keep(product)
    if any(n == int(n) for n in numbers):
        found, wanted = (
            f"powers of {numbers[:4]}",
            "one number from -8 to 8, or fractions: ncnn's power of negative values is NaN",
        )
        raise step.refuse(found, wanted, "Multiply.")
    return binary(6, 9)(step)


_FACTORS = 8


def operand_shapes(step: OpContext, indices: Sequence[int] = (0, 1)) -> list[tuple[int, ...]]:
    """Return the shapes of operands in the axes of the result's blob.

    ncnn has other broadcasting rules than ONNX for blobs of different ranks.

    Raises:
        DeployError: more than four axes between which the operands broadcast differently.
    """
    source, node = step.source, step.node
    full = [step.sizes(i) for i in indices]
    rank, gone = max(map(len, full)), batch_axis(source, step.output, node.name)
    wide = [(1,) * (rank - len(sizes)) + sizes for sizes in full]
    shapes = [tuple(n for i, n in enumerate(sizes) if i != gone) or (1,) for sizes in wide]
    if len(shapes[0]) > MOST:
        shapes = [tuple(sizes) for sizes in merged(shapes)]
    if len(shapes[0]) > MOST:
        raise step.refuse(f"broadcasting of {full}", "at most four axes", "Expand one operand first.")
    return shapes


def _wide(blob: Blob) -> str:
    return f"{blob.name.rpartition('.')[2]}.wide"


def operand(step: OpContext, index: int, shape: tuple[int, ...]) -> Blob:
    """Return an operand as a blob of a shape."""
    held = step.constant_input(index)
    if held is not None:
        value = (
            np.nan_to_num(held.real, nan=np.nan, posinf=ENDS[1], neginf=ENDS[0]) if step.node.op_type == "Where" else held.real
        )
        return step.file.constant(step.node.input[index], value.reshape(shape))
    blob = step.input(index)
    return step.reshaped(blob, shape, _wide(blob))


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
    x, place = along(step, int(step.attribute("axis", -1)))
    made = step.layer("Softmax", [x], "", x.shape, p0=place, p1=1)
    step.keep(step.reshaped(made, step.shape, "flat"))


def axis_of(step: OpContext, axis: int, index: int = 0) -> int:
    """Return the axis of an example for an axis of the model's tensor.

    Raises:
        DeployError: the axis is the batch, or has several entries for each example.
    """
    name = step.node.input[index]
    gone, axis = batch_axis(step.source, name, step.node.name), axis % len(step.sizes(index))
    if axis in (gone, step.source.varies(name)):
        raise step.refuse("an op along the batch", "another axis", "Use an axis after the batch.")
    return axis - int(gone is not None and axis > gone)


def along(step: OpContext, axis: int) -> tuple[Blob, int]:
    """Return an input as a blob, and the axis of the blob for an axis of the model's tensor.

    A tensor of more than four axes is a blob of three: those before the axis, the axis, and those after it.
    """
    x, place, example = step.input(), axis_of(step, axis), step.example()
    if x.shape == example:
        return x, place
    rows = (math.prod(example[:place]), example[place], math.prod(example[place + 1 :]))
    return step.reshaped(x, rows, "along"), 1


def celu(step: OpContext) -> None:
    """Write CELU."""
    step.write_result("CELU", step.input(), p0=float(step.attribute("alpha", 1.0)))


def softplus(step: OpContext) -> None:
    """Write max(x, 0) + log(1 + exp(-|x|)); ncnn's Softplus ends at 88."""
    x = step.input()
    least = step.layer("UnaryOp", [step.layer("UnaryOp", [x], "magnitude", x.shape, p0=0)], "least", x.shape, p0=1)
    power = step.layer("UnaryOp", [least], "power", x.shape, p0=7)
    sum_ = step.layer("BinaryOp", [power], "sum", x.shape, p0=0, p1=1, p2=1.0)
    parts = [step.layer("UnaryOp", [sum_], "log", x.shape, p0=8), step.layer("ReLU", [x], "positive", x.shape)]
    step.write_result("BinaryOp", *parts, p0=0)


def softsign(step: OpContext) -> None:
    """Write x / (1 + |x|)."""
    x = step.input()
    magnitude = step.layer("UnaryOp", [x], "magnitude", x.shape, p0=0)
    step.write_result("BinaryOp", x, step.layer("BinaryOp", [magnitude], "sum", x.shape, p0=0, p1=1, p2=1.0), p0=3)


def shrink(step: OpContext) -> None:
    """Write x - clip(x, -l, l), or x where |x| > l if the bias is 0.

    Raises:
        DeployError: another bias.
    """
    x, threshold, bias = step.input(), float(step.attribute("lambd", 0.5)), float(step.attribute("bias", 0.0))
    if bias == threshold:
        within = step.layer("Clip", [x], "within", x.shape, p0=-threshold, p1=threshold)
        return step.write_result("BinaryOp", x, within, p0=1)
    if bias:
        raise step.refuse(f"lambd={threshold:g} and bias={bias:g}", "a bias of 0, or equal numbers", "Use softshrink.")
    magnitude = step.layer("UnaryOp", [x], "magnitude", x.shape, p0=0)
    over = step.layer("Threshold", [magnitude], "over", x.shape, p0=threshold)
    return step.write_result("BinaryOp", x, over, p0=2)


def cast(step: OpContext) -> None:
    """Write nothing for a Cast of real numbers to float32.

    Raises:
        DeployError: another type.
    """
    kind = step.source.kind(step.node.input[0])
    if kind != REAL or int(step.attribute("to")) != REAL:
        do = "Compute it once, outside the model."
        raise step.refuse(f"a conversion of {step.source.element_type(step.node.input[0])}", "float32", do)
    step.keep(step.input())


def prelu(step: OpContext) -> None:
    """Write PReLU with a slope for each channel, or one."""
    slopes = step.constant_input(1)
    if slopes is None:
        raise step.refuse("slopes that are computed", "a constant", "Compute them once, outside the model.")
    _weighted(step, "PReLU", slopes.real.ravel())


def _weighted(step: OpContext, kind: str, slope: Array) -> None:
    blob = step.file.layer(kind, [step.input()], step.output, step.shape, {0: slope.size}, weights=[floats(slope)])
    step.keep(blob)
