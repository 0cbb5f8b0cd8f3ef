"""The table of QLinear operators: ONNX op -> the operator on codes that replaces it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from attrs import frozen
from onnx import helper

MICROSOFT = "com.microsoft"


@frozen
class CodeTensor:
    """A tensor of codes with the names of its scale and zero point."""

    tensor: str
    scale: str
    zero_point: str

    @property
    def names(self) -> tuple[str, str, str]:
        """The three names in the order of an operator's inputs."""
        return self.tensor, self.scale, self.zero_point


Writer = Callable[[onnx.NodeProto, Sequence[CodeTensor], CodeTensor], onnx.NodeProto]
"""The writer of one operator. Its arguments are the real op, the codes of its inputs and the codes of its result."""


def _node_like(node: onnx.NodeProto, op: str, inputs: Sequence[str], y: CodeTensor, domain: str = "") -> onnx.NodeProto:
    on_codes = helper.make_node(op, inputs, [y.tensor], name=node.name, domain=domain)
    on_codes.attribute.extend(node.attribute)
    return on_codes


def _names(inputs: Sequence[CodeTensor]) -> list[str]:
    return [name for codes in inputs for name in codes.names]


def _conv(node: onnx.NodeProto, inputs: Sequence[CodeTensor], y: CodeTensor) -> onnx.NodeProto:
    bias = [codes.tensor for codes in inputs[2:]]
    return _node_like(node, "QLinearConv", [*_names(inputs[:2]), y.scale, y.zero_point, *bias], y)


def _gemm(node: onnx.NodeProto, inputs: Sequence[CodeTensor], y: CodeTensor) -> onnx.NodeProto:
    bias = [codes.tensor for codes in inputs[2:]] or [""]
    return _node_like(node, "QGemm", [*_names(inputs[:2]), *bias, y.scale, y.zero_point], y, MICROSOFT)


def _concat(node: onnx.NodeProto, inputs: Sequence[CodeTensor], y: CodeTensor) -> onnx.NodeProto:
    return _node_like(node, "QLinearConcat", [y.scale, y.zero_point, *_names(inputs)], y, MICROSOFT)


def _writer(op: str, count: int, domain: str = MICROSOFT) -> Writer:
    def write(node: onnx.NodeProto, inputs: Sequence[CodeTensor], y: CodeTensor) -> onnx.NodeProto:
        return _node_like(node, op, [*_names(inputs[:count]), y.scale, y.zero_point], y, domain)

    return write


WRITERS: dict[str, Writer] = {
    "Conv": _conv, "Gemm": _gemm, "MatMul": _writer("QLinearMatMul", 2, domain=""), "Add": _writer("QLinearAdd", 2),
    "AveragePool": _writer("QLinearAveragePool", 1), "GlobalAveragePool": _writer("QLinearGlobalAveragePool", 1),
    "Concat": _concat,
}  # fmt: skip
"""ONNX operator -> the writer of its QLinear operator."""

WITH_BIAS = ("Conv", "Gemm")
"""Ops whose third input is a bias, whose scale must be s_x s_w."""

MOVES = ("MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Expand", "Resize")
"""Ops that ONNX defines on codes too; Resize only with mode="nearest"."""
