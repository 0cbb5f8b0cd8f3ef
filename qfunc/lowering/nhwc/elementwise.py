"""Write elementwise ops and softmax as TFLite's operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.tensor import NhwcTensor


def binary(op: str, options: str, codes: bool = True) -> Callable[[OpContext], None]:
    """Return the writer of an op of two tensors that broadcast."""

    def write(step: OpContext) -> None:
        if codes:
            step.on_codes(0, 1, fuses=options in ("AddOptions", "SubOptions", "MulOptions"))
        operands = _aligned(step, [step.input(i) for i in (0, 1)])
        rank, last = len(step.shape), any(h.last for h in operands)
        shape = (step.shape[0], *step.shape[2:], step.shape[1]) if last and rank > 2 else step.shape
        fields: dict[str, Any] = {"fusedActivationFunction": step.activation} if options in _FUSING else {}
        step.file.operator(op, operands, [step.result(shape, last=last)], options, **fields)

    return write


_FUSING = ("AddOptions", "SubOptions", "MulOptions", "DivOptions")


def _aligned(step: OpContext, operands: list[NhwcTensor]) -> list[NhwcTensor]:
    # Both in the layout of the model, or both with their channels last.
    rank = len(step.shape)
    if not any(h.last for h in operands) or rank < 3:
        return [step.writer.plain(h) for h in operands]
    if any(h.value is None and len(h.shape) not in (rank, 0) for h in operands):
        return [step.writer.plain(h) for h in operands]
    return [_constant_last(step, h, rank) if h.value is not None else step.writer.channels_last(h) for h in operands]


def _constant_last(step: OpContext, constant: NhwcTensor, rank: int) -> NhwcTensor:
    assert constant.value is not None
    if constant.value.size == 1:
        return constant
    value = constant.value.reshape((1,) * (rank - constant.value.ndim) + constant.value.shape)
    value = np.ascontiguousarray(np.moveaxis(value, 1, -1))
    return step.file.tensor(f"{constant.name}.nhwc", value.shape, constant.qparams, value=value)


def unary(op: str, options: str = "", codes: bool = True, **fields: Any) -> Callable[[OpContext], None]:
    """Return the writer of an op of one tensor."""

    def write(step: OpContext) -> None:
        if codes:
            step.on_codes(0)
        x = step.input()
        output = step.result(x.shape, last=x.last)
        step.file.operator(op, [x], [output], options, **fields)

    return write


def hard_swish(step: OpContext) -> None:
    """Write HARD_SWISH.

    Raises:
        DeployError: the ratio of its scales is not below the file's limit.
    """
    unary("HARD_SWISH")(step)
    x, y, limit = step.writer.tensor(step.node.input[0]).qparams, step.qparams, step.file.hard_swish_ratio
    if step.codes and limit and x and y and np.float32(x.scale[0]) / np.float32(limit) >= np.float32(y.scale[0]):
        found = f"scales {x.scale[0]:g} and {y.scale[0]:g}"
        raise step.refuse(
            found, f"an input's scale below {limit:g} times the output's", "Calibrate on inputs of the deployed range."
        )


def leaky_relu(step: OpContext) -> None:
    """Write LEAKY_RELU."""
    unary("LEAKY_RELU", "LeakyReluOptions", alpha=float(step.attribute("alpha", 0.01)))(step)


def bounded(step: OpContext) -> None:
    """Write RELU, RELU6 or RELU_N1_TO_1; for other bounds, MAXIMUM and MINIMUM."""
    low, high = step.source.bounds(step.node)
    step.on_codes(0)
    x = step.input()
    known: dict[tuple[float | None, float | None], str] = {
        (0.0, None): "RELU",
        (0.0, 6.0): "RELU6",
        (-1.0, 1.0): "RELU_N1_TO_1",
    }
    if (low, high) in known:
        return step.file.operator(known[low, high], [x], [step.result(x.shape, last=x.last)])
    ends = [(op, v) for op, v in (("MAXIMUM", low), ("MINIMUM", high)) if v is not None]
    if not ends:
        raise step.refuse("a Clip without bounds", "at least one bound", "Remove it.")
    for place, (op, value) in enumerate(ends):
        bound = step.file.tensor(f"{step.name}.{op.lower()}", (1,), x.qparams, value=_coded(step, value, x))
        output = step.result(x.shape, last=x.last) if place == len(ends) - 1 else step.inner("raised", x.shape, x, last=x.last)
        step.file.operator(op, [x, bound], [output], "MaximumMinimumOptions")
        x = output


def _coded(step: OpContext, value: float, like: NhwcTensor) -> Any:
    if like.qparams is None:
        return np.array([value], np.float32)
    return np.array([np.clip(step.file.bound_code(value, like.qparams), -128, 127)], np.int8)


def softmax(op: str, options: str = "", **fields: Any) -> Callable[[OpContext], None]:
    """Return the writer of SOFTMAX or LOG_SOFTMAX, with a TRANSPOSE that makes its axis the last."""

    def write(step: OpContext) -> None:
        if op == "SOFTMAX":
            step.on_codes(0)
        x, rank = step.input(), len(step.shape)
        axis = int(step.attribute("axis", -1)) % rank
        if not (x.last and axis == 1):
            x = step.writer.plain(x)
        if x.last or axis == rank - 1:
            return step.file.operator(op, [x], [step.result(x.shape, last=x.last)], options, **fields)
        order = [*(i for i in range(rank) if i != axis), axis]
        back = [int(i) for i in np.argsort(order)]
        transposed = step.inner("turned", [x.shape[i] for i in order], x)
        step.file.operator("TRANSPOSE", [x, step.file.integers(order, f"{step.name}.order")], [transposed], "TransposeOptions")
        output = step.inner("values", transposed.shape)
        step.file.operator(op, [transposed], [output], options, **fields)
        inputs = [output, step.file.integers(back, f"{step.name}.back")]
        step.file.operator("TRANSPOSE", inputs, [step.result(step.shape)], "TransposeOptions")

    return write


def prelu(step: OpContext) -> None:
    """Write PRELU with a slope for each channel."""
    step.on_codes(0, 1)
    x = step.input()
    slope, qparams = step.array(1)
    x = step.writer.channels_last(x)
    value = slope.reshape((1,) * (len(x.shape) - slope.ndim) + slope.shape)
    value = np.ascontiguousarray(np.moveaxis(value, 1, -1))[0] if len(x.shape) > 1 else value
    slopes = step.file.tensor(step.node.input[1], value.shape, qparams, value=value)
    step.file.operator("PRELU", [x, slopes], [step.result(x.shape, last=x.last)])
