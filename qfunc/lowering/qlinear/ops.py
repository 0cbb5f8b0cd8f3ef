"""The table of QLinear operators: ONNX op -> the operator on codes in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from attrs import frozen
from onnx import helper

MICROSOFT = "com.microsoft"


@frozen
class Codes:
    """A tensor of codes with the names of its scale and zero point."""

    tensor: str
    scale: str
    zero_point: str

    @property
    def names(self) -> tuple[str, str, str]:
        """All three, as operators take them."""
        return self.tensor, self.scale, self.zero_point


Writer = Callable[[onnx.NodeProto, Sequence[Codes], Codes], onnx.NodeProto]
"""(the op on real values, the codes of its inputs, the codes of its result) -> the operator on codes."""


def _like(node: onnx.NodeProto, op: str, inputs: Sequence[str], y: Codes, domain: str = "") -> onnx.NodeProto:
    on_codes = helper.make_node(op, inputs, [y.tensor], name=node.name, domain=domain)
    on_codes.attribute.extend(node.attribute)
    return on_codes


def _names(inputs: Sequence[Codes]) -> list[str]:
    return [name for codes in inputs for name in codes.names]


def _conv(node: onnx.NodeProto, inputs: Sequence[Codes], y: Codes) -> onnx.NodeProto:
    bias = [codes.tensor for codes in inputs[2:]]
    return _like(node, "QLinearConv", [*_names(inputs[:2]), y.scale, y.zero_point, *bias], y)


def _gemm(node: onnx.NodeProto, inputs: Sequence[Codes], y: Codes) -> onnx.NodeProto:
    bias = [codes.tensor for codes in inputs[2:]] or [""]
    return _like(node, "QGemm", [*_names(inputs[:2]), *bias, y.scale, y.zero_point], y, MICROSOFT)


def _concat(node: onnx.NodeProto, inputs: Sequence[Codes], y: Codes) -> onnx.NodeProto:
    return _like(node, "QLinearConcat", [y.scale, y.zero_point, *_names(inputs)], y, MICROSOFT)


def _of_inputs(op: str, count: int, domain: str = MICROSOFT) -> Writer:
    def write(node: onnx.NodeProto, inputs: Sequence[Codes], y: Codes) -> onnx.NodeProto:
        return _like(node, op, [*_names(inputs[:count]), y.scale, y.zero_point], y, domain)

    return write


WRITERS: dict[str, Writer] = {
    "Conv": _conv, "Gemm": _gemm, "MatMul": _of_inputs("QLinearMatMul", 2, domain=""), "Add": _of_inputs("QLinearAdd", 2),
    "AveragePool": _of_inputs("QLinearAveragePool", 1), "GlobalAveragePool": _of_inputs("QLinearGlobalAveragePool", 1),
    "Concat": _concat,
}  # fmt: skip
"""By the type of the node."""

WITH_BIAS = ("Conv", "Gemm")
"""Ops whose third input is a bias, which has to have the scale of the products."""

MOVES = ("MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Expand", "Resize")
"""Ops that run on codes as they are; Resize only by nearest neighbours."""

__all__ = ["MICROSOFT", "MOVES", "WITH_BIAS", "WRITERS", "Codes", "Writer"]
