"""Write masks that the model computes from its inputs, as 0 and 1 in float32: the formats' choices are bounds of values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.formulas import Formula
from qfunc.lowering.nhwc.tensor import INTEGERS, NhwcTensor
from qfunc.lowering.qdq.reader import REAL

_VIEWS = ("Reshape", "Unsqueeze", "Squeeze", "Flatten", "Identity")
_BOOL = onnx.TensorProto.BOOL


def cast(step: OpContext) -> None:
    """Write CAST of an integer input of the model to float32; booleans are 0 and 1 already.

    Raises:
        DeployError: other integers, which the model computes.
    """
    name = str(step.node.input[0])
    step.keep(masks(step, name) if step.source.kind(name) == _BOOL else _real(step, name))


def choice(step: OpContext, f: Formula) -> None:
    """Write Where(m, x, c) of a computed mask m and a number c: the larger of c and x, the lesser of c and x, by m.

    Where(m, c, x) is Where(not m, x, c).

    x is bounded by (m - 1/2) inf, which is inf or -inf; a c above -inf is a bound of its own where m is 0.

    Raises:
        DeployError: other conditions than masks of an input, or two values that are both computed.
    """
    mask = masks(step, str(step.node.input[0]))
    numbers = {i: n for i in (1, 2) if (n := _number(step.writer.tensor(step.node.input[i]))) is not None}
    if not numbers:
        do = "Choose between a tensor and a number, as masked_fill does."
        raise step.refuse("a choice of two tensors by a condition that the model computes", "a number as one value", do)
    kept = 1 if 2 in numbers else 2
    number, mask = numbers[3 - kept], mask if kept == 1 else f("SUB", 1.0, mask)
    upper = f("MUL", f("SUB", mask, 0.5), np.inf)
    into = step.result(step.shape)
    values = step.writer.plain(step.input(kept))
    if number == -np.inf:
        f("MINIMUM", values, upper, into=into)
        return
    bounded = f("MINIMUM", values, f("MAXIMUM", upper, number))
    f("MAXIMUM", bounded, f("MINIMUM", f("MUL", upper, -1.0), number), into=into)


def _number(value: NhwcTensor) -> float | None:
    return float(np.asarray(value.value).reshape(-1)[0]) if value.value is not None and value.value.size == 1 else None


def masks(step: OpContext, name: str) -> NhwcTensor:
    """Return a tensor of booleans as 0 and 1.

    Raises:
        DeployError: a condition that is no mask of an input, or a comparison.
    """
    held = step.writer.derived.get((-1, f"mask {name}"))
    if held is not None:
        return held
    node = step.source.producers.get(name)
    write = None if node is None else _WRITERS.get(node.op_type)
    if node is None or write is None:
        do = "Give the model a mask of 0 and 1 as its input."
        raise step.refuse(f"a choice by {name if node is None else node.op_type}", "a mask that is an input, cast to bool", do)
    inner = OpContext(step.writer, node)
    made = step.writer.derived[-1, f"mask {name}"] = write(inner)
    return made


def _converted(step: OpContext) -> NhwcTensor:
    # x != 0: min(|x|, 1) of integers, the sign of |x| of real numbers.  Of booleans their value.
    name, f = str(step.node.input[0]), Formula(step)
    kind = step.source.kind(name)
    if kind == _BOOL:
        return masks(step, name)
    if kind == REAL:
        return f.sign(f("ABS", step.writer.plain(step.input())))
    return f("MINIMUM", f("ABS", _real(step, name)), 1.0)


def _real(step: OpContext, name: str) -> NhwcTensor:
    # The integers of an input, perhaps seen through views, in float32.
    node = step.source.producers.get(name)
    if node is not None and node.op_type in _VIEWS:
        inner = OpContext(step.writer, node)
        return _viewed(inner, _real(step, str(node.input[0])))
    given = step.writer.tensors.get(name)
    if node is not None or given is None or step.source.kind(name) not in INTEGERS:
        do = "Compute them outside of the deployed model."
        raise step.refuse(f"computed integers, {name!r}", "an input of the model", do)
    key = (given.index, "in float32")
    if key not in step.writer.derived:
        made = step.writer.make(f"{name}.real", given.shape, None)
        types = {"inDataType": INTEGERS[step.source.kind(name)], "outDataType": "FLOAT32"}
        step.file.operator("CAST", [given], [made], "CastOptions", **types)
        step.writer.derived[key] = made
    return step.writer.derived[key]


def _viewed(step: OpContext, x: NhwcTensor) -> NhwcTensor:
    into = step.writer.make(step.output, step.shape, None)
    return step.reshaped(x, step.shape, into, varies=step.source.varies(step.output))


def _view(step: OpContext) -> NhwcTensor:
    return _viewed(step, masks(step, str(step.node.input[0])))


def _expanded(step: OpContext) -> NhwcTensor:
    # A choice expands its mask.
    return masks(step, str(step.node.input[0]))


def _not(step: OpContext) -> NhwcTensor:
    return Formula(step)("SUB", 1.0, masks(step, str(step.node.input[0])))


def _both(op: str) -> Callable[[OpContext], NhwcTensor]:
    def write(step: OpContext) -> NhwcTensor:
        a, b = (masks(step, str(name)) for name in step.node.input)
        return Formula(step)(op, a, b)

    return write


_WRITERS: dict[str, Callable[[OpContext], NhwcTensor]] = {
    "Cast": _converted, "Expand": _expanded, "Not": _not, "And": _both("MUL"), "Or": _both("MAXIMUM"),
    **dict.fromkeys(_VIEWS, _view),
}  # fmt: skip
