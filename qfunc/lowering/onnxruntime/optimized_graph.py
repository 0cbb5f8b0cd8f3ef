"""What an optimised graph of ONNX Runtime has in common with the original one: names of ops, codes, element types."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qfunc.lowering.qdq_reader import QdqModel

INTEGER_TYPES = (2, 3)  # TensorProto.UINT8, INT8
PAIR = ("QuantizeLinear", "DequantizeLinear")


def original_name(name: str) -> str:
    """Return the name of a node or a tensor without the suffix that layout passes append.

    >>> original_name("conv_token_3")
    'conv'
    """
    return re.sub(r"(_token_\d+)+$", "", name)


def reader(model: Any) -> QdqModel:
    """Return an index of a model.  It is imported here, so that `import qfunc` does not import onnx."""
    from qfunc.lowering.qdq_reader import QdqModel

    return QdqModel(model)


def codes_of(node: Any, source: QdqModel) -> list[str]:
    """Return the first code tensor of each result of an op, also after an activation; a write into state gives codes itself."""
    codes = []
    for output in node.output:
        readers = source.readers.get(output, [])
        if node.op_type == "ScatterElements" and any(r.op_type == "DequantizeLinear" for r in readers):
            codes.append(output)
        while len(readers) == 1 and readers[0].op_type in ("Relu", "Clip"):
            readers = source.readers.get(readers[0].output[0], [])
        codes += [r.output[0] for r in readers if r.op_type == "QuantizeLinear"][:1]
    return codes


def code_tensors(original: Any) -> list[str]:
    """Return the tensors of codes of a Q/DQ model: the results of quantizers, and of writes into state."""
    source = reader(original)
    written = [n for n in original.graph.node if n.op_type in ("QuantizeLinear", "ScatterElements")]
    return [n.output[0] for n in written if n.op_type == "QuantizeLinear" or n.output[0] in codes_of(n, source)]


def element_types(model: Any) -> dict[str, int]:
    """Return tensor -> element type in an optimised graph; ops of com.microsoft take it from their inputs."""
    graph = model.graph
    types = {i.name: i.data_type for i in graph.initializer}
    types |= {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    output_type_input = {
        "QLinearConv": 7,
        "QLinearMatMul": 7,
        "QGemm": 8,
        "QLinearAdd": 7,
        "QLinearMul": 7,
        "QLinearConcat": 1,
        "QuantizeLinear": 2,
    }
    for node in graph.node:
        index = output_type_input.get(node.op_type, 0)
        source = node.input[index] if index < len(node.input) else ""
        element_type = 1 if node.op_type == "DequantizeLinear" or not source else types.get(source, 1)
        element_type = 7 if node.op_type in ("Shape", "Size") else element_type
        for output in node.output:
            types.setdefault(output, element_type)
    return types


__all__ = ["INTEGER_TYPES", "PAIR", "code_tensors", "codes_of", "element_types", "original_name", "reader"]
