"""Write functions of one tensor as TABLE, which has the result for each of the 256 codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from torch import Tensor

from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.nhwc.writer import Writer
from qfunc.numerics.kernels.integer import dequantize_codes, quantize_codes
from qfunc.targets.tosa.builder import TosaBuilder
from qfunc.targets.tosa.functions import decimal
from qfunc.targets.tosa.rescale import qparams_of

Curve = Callable[[Tensor, Mapping[str, Any]], Tensor]

CURVES: dict[str, Curve] = {
    "Sigmoid": lambda x, a: torch.sigmoid(x), "Tanh": lambda x, a: torch.tanh(x), "HardSwish": lambda x, a: F.hardswish(x),
    "Elu": lambda x, a: F.elu(x, decimal(a.get("alpha", 1.0))),
    "LeakyRelu": lambda x, a: F.leaky_relu(x, a.get("alpha", 0.01)),
    "Gelu": lambda x, a: F.gelu(x, approximate=a.get("approximate", b"none").decode()),
    "HardSigmoid": lambda x, a: F.hardsigmoid(x), "Silu": lambda x, a: F.silu(x),
    "Softplus": lambda x, a: F.softplus(x), "Mish": lambda x, a: F.mish(x),
}  # fmt: skip
"""ONNX operator, or Silu, -> its function of a tensor and the operator's attributes."""


def table_function(step: OpContext) -> None:
    """Write an elementwise function, on codes."""
    step.on_codes(0)
    x = step.input()
    attributes = {a.name: step.attribute(a.name) for a in step.node.attribute}
    step.file.operator(step.node.op_type, [x], [step.result(x.shape, last=x.last)], **attributes)


def silu(writer: Writer, nodes: list[onnx.NodeProto]) -> None:
    """Write x * sigmoid(x): the nodes Sigmoid and Mul."""
    sigmoid, product = nodes[:2]
    final = OpContext(writer, product)
    index = list(product.input).index(sigmoid.input[0])
    final.on_codes(index)
    x = final.input(index)
    writer.done.update((sigmoid.output[0], final.output))
    final.file.operator("Silu", [x], [final.result(x.shape, last=x.last)])


def table_writer(name: str) -> Callable[[TosaBuilder, list[NhwcTensor], NhwcTensor, dict[str, Any]], None]:
    """Return the writer of a TABLE.

    The function maps float32 to float32 and is computed in float64; LeakyRelu, a multiplication, in float32.
    """
    dtype = torch.float32 if name == "LeakyRelu" else torch.float64

    def write(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
        _table(graph, inputs[0], out, lambda x: CURVES[name](x.to(dtype), fields).float())

    return write


def requantize(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write a TABLE from codes to the codes of other qparams for the same values."""
    _table(graph, inputs[0], out, lambda real: real)


def formula_table(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write a TABLE of a `Formula`."""
    _table(graph, inputs[0], out, fields["formula"])


def _table(graph: TosaBuilder, x: NhwcTensor, out: NhwcTensor, function: Callable[[Tensor], Tensor]) -> None:
    codes = torch.arange(-128, 128, dtype=torch.float32)
    real = function(dequantize_codes(codes, *qparams_of(x))).nan_to_num(0.0, torch.inf, -torch.inf)  # of no input: any code
    values = quantize_codes(real, *qparams_of(out), -128, 127).numpy().astype(np.int8)
    graph.node("TABLE", [x, graph.constant(values, np.int8, f"{out.name}.table")], out)
