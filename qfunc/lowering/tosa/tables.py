"""Functions of one code as TABLE: what they make of each of the 256 codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.tosa.builder import TosaBuilder
from qfunc.lowering.tosa.rescale import qparams_of
from qfunc.numerics.kernels.integer import dequantize_codes, quantize_codes

Curve = Callable[[Tensor, Mapping[str, Any]], Tensor]

CURVES: dict[str, Curve] = {
    "Sigmoid": lambda x, a: torch.sigmoid(x), "Tanh": lambda x, a: torch.tanh(x), "HardSwish": lambda x, a: F.hardswish(x),
    "Elu": lambda x, a: F.elu(x, _decimal(a.get("alpha", 1.0))),
    "LeakyRelu": lambda x, a: F.leaky_relu(x, a.get("alpha", 0.01)),
    "Gelu": lambda x, a: F.gelu(x, approximate=a.get("approximate", b"none").decode()),
    "HardSigmoid": lambda x, a: F.hardsigmoid(x), "Silu": lambda x, a: F.silu(x),
    "Softplus": lambda x, a: F.softplus(x), "Mish": lambda x, a: F.mish(x),
}  # fmt: skip
"""By the operator of ONNX, but for Silu: its function, with its attributes."""


def _decimal(value: float) -> float:
    # What was written before ONNX made a float32 of it: the shortest number that is read as the same.
    return float(str(np.float32(value)))


def table_function(step: OpContext) -> None:
    """A function of each entry, on codes."""
    step.on_codes(0)
    x = step.input()
    given = {a.name: step.attribute(a.name) for a in step.node.attribute}
    step.file.operator(step.node.op_type, [x], [step.result(x.shape, last=x.last)], **given)


def sigmoid(step: OpContext) -> None:
    """Write a sigmoid, or, with the product after it, SiLU: x * sigmoid(x), for which ONNX has no operator."""
    x, product = str(step.node.input[0]), step.source.only_reader(step.output)
    if product is None or product.op_type != "Mul" or {*product.input} != {x, step.output}:
        return table_function(step)
    whole = OpContext(step.writer, product)
    place = list(product.input).index(x)
    whole.on_codes(place)
    held = whole.input(place)
    step.writer.done.add(whole.output)
    whole.file.operator("Silu", [held], [whole.result(held.shape, last=held.last)])


def table_writer(name: str) -> Callable[[TosaBuilder, list[NhwcTensor], NhwcTensor, dict[str, Any]], None]:
    """TABLE of a function, in float64 between real values of float32; of two slopes in float32, which holds them exactly."""
    wide = torch.float32 if name == "LeakyRelu" else torch.float64

    def write(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
        _table(graph, given[0], out, lambda x: CURVES[name](x.to(wide), fields).float())

    return write


def requantize(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write a TABLE from codes to the codes of other qparams for the same values."""
    _table(graph, given[0], out, lambda real: real)


def _table(graph: TosaBuilder, x: NhwcTensor, out: NhwcTensor, function: Callable[[Tensor], Tensor]) -> None:
    codes = torch.arange(-128, 128, dtype=torch.float32)
    real = function(dequantize_codes(codes, *qparams_of(x)))
    values = quantize_codes(real, *qparams_of(out), -128, 127).numpy().astype(np.int8)
    graph.node("TABLE", [x, graph.constant(values, np.int8, f"{out.name}.table")], out)


__all__ = ["CURVES", "table_function", "requantize", "sigmoid", "table_writer"]
