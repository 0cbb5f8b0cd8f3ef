"""Compute functions of one tensor of codes, which ONNX writes as one node or several, for each code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from attrs import frozen
from onnx import helper
from torch import Tensor

from qfunc.errors import DeployError
from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.writer import Writer

Function = Callable[..., Tensor]
"""The function of a node: its operands, and its attributes by name."""


def decimal(value: float) -> float:
    """Return a number as it was before ONNX rounded it to float32: the shortest decimal with the same float32.

    >>> decimal(float(np.float32(0.1)))
    0.1
    """
    return float(str(np.float32(value)))


def _clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    return x if low is None and high is None else torch.clamp(x, low, high)


def _shrink(x: Tensor, lambd: float = 0.5, bias: float = 0.0) -> Tensor:
    return torch.where(x > lambd, x - bias, torch.where(x < -lambd, x + bias, torch.zeros_like(x)))


_ROUNDED_ONCE: dict[str, Function] = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div, "Neg": torch.neg, "Abs": torch.abs,
    "Floor": torch.floor, "Ceil": torch.ceil, "Round": torch.round, "Sign": torch.sign, "Relu": F.relu, "Clip": _clip,
    "Max": lambda *x: reduce(torch.maximum, x), "Min": lambda *x: reduce(torch.minimum, x), "Identity": lambda x: x,
    "Greater": torch.gt, "Less": torch.lt, "GreaterOrEqual": torch.ge, "LessOrEqual": torch.le, "Equal": torch.eq,
    "Not": torch.logical_not, "And": torch.logical_and, "Or": torch.logical_or, "Where": torch.where,
}  # fmt: skip
"""Operators of ONNX whose result in float32 is that of exact arithmetic, rounded once."""

FUNCTIONS: dict[str, Function] = _ROUNDED_ONCE | {
    "Pow": torch.pow, "Exp": torch.exp, "Sqrt": torch.sqrt, "Log": torch.log, "Reciprocal": torch.reciprocal, "Erf": torch.erf,
    "Sin": torch.sin, "Cos": torch.cos, "Tan": torch.tan, "Asin": torch.asin, "Acos": torch.acos, "Atan": torch.atan,
    "Sinh": torch.sinh, "Cosh": torch.cosh, "Asinh": torch.asinh, "Acosh": torch.acosh, "Atanh": torch.atanh,
    "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Softplus": F.softplus, "Softsign": F.softsign, "Shrink": _shrink,
    "Celu": lambda x, alpha=1.0: F.celu(x, alpha), "Selu": lambda x, **_: F.selu(x),
}  # fmt: skip
"""Operators of ONNX as functions of each element."""


@frozen(eq=False)
class Formula:
    """The nodes between the codes of one tensor and the quantizer of a result, in order.

    `names` are the tensor's names.  All other operands are numbers.
    """

    writer: Writer
    names: frozenset[str]
    nodes: Sequence[onnx.NodeProto]
    quantizer: onnx.NodeProto

    def __call__(self, x: Tensor) -> Tensor:
        """Return the result of real values in float32: computed in float32 if each node rounds once, else in float64."""
        once = all(node.op_type in _ROUNDED_ONCE for node in self.nodes)
        dtype = torch.float32 if once else torch.float64
        values = dict.fromkeys(self.names, x.to(dtype))
        for node in self.nodes:
            operands = [self._operand(name, values, dtype) for name in node.input]
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            attributes = {name: decimal(v) if isinstance(v, float) else v for name, v in attributes.items()}
            values[node.output[0]] = FUNCTIONS[node.op_type](*operands, **attributes)
        return values[self.quantizer.input[0]].float()

    def _operand(self, name: str, values: dict[str, Tensor], dtype: torch.dtype) -> Any:
        if not name or name in values:
            return values.get(name)
        (number,) = np.ravel(_number(self.writer, name))
        return torch.tensor(decimal(number) if number.dtype.kind == "f" else number.item()).to(dtype)


def formula(step: OpContext) -> Formula | None:
    """Return the formula of a unit, or None if the unit reads more than one tensor, or has other operators."""
    writer, source = step.writer, step.source
    nodes = writer.unit_nodes(step.node)
    quantizer = source.only_reader(nodes[-1].output[0])
    made = {node.output[0] for node in nodes}
    codes = [n for node in nodes for n in node.input if n and n not in made and _number(writer, n) is None]
    if quantizer is None or quantizer.op_type != "QuantizeLinear" or any(node.op_type not in FUNCTIONS for node in nodes):
        return None
    tensors = {writer.tensors[name].index: writer.tensors[name] for name in codes}
    if len(tensors) != 1 or any(sum(name in codes for name in node.input) > 1 for node in nodes):
        return None  # x + x and x * x have kernels of two tensors
    (x,) = tensors.values()
    ranks = [np.ndim(n) for node in nodes for name in node.input if name and (n := _number(writer, name)) is not None]
    if x.qparams is None or len(x.qparams.scale) > 1 or x.value is not None or max(ranks, default=0) > len(x.shape):
        return None
    return Formula(writer, frozenset(codes), nodes, quantizer)


def _number(writer: Writer, name: str) -> Any:
    # The array of a constant with one entry, else None.
    value = writer.folded.get(name, writer.source.constants.get(name))
    return value if value is not None and np.size(value) == 1 else None


def by_formula(other: Callable[[Writer, onnx.NodeProto], None] | None) -> Callable[[OpContext], None]:
    """Return the writer of a formula as TABLE; `other` writes nodes that are part of none."""

    def write(step: OpContext) -> None:
        made = formula(step)
        if made is not None:
            return _write(step, made)
        if other is not None:
            return other(step.writer, step.node)
        do = "Keep it out of the deployed model, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
        found, wanted = step.node.op_type, f"an op that {step.file.lowering} writes"
        raise DeployError(where=f"op {step.node.name!r}", found=found, wanted=wanted, do=do)

    return write


def _write(step: OpContext, made: Formula) -> None:
    writer, name = step.writer, str(made.quantizer.output[0])
    x = writer.tensors[min(made.names)]
    out = writer.make(name, x.shape, step.source.qparams(made.quantizer), last=x.last)
    writer.tensors[name] = out
    writer.done.update((name, *(node.output[0] for node in made.nodes)))
    step.file.operator("FORMULA", [writer.stored(x)], [out], formula=made)
