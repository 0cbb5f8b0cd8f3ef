"""What an optimised graph of ONNX Runtime has in common with the original one: names of ops, codes, element types."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qfunc.lowering.qdq.reader import QdqModel

INTEGER_TYPES = (2, 3)  # TensorProto.UINT8, INT8
PAIR = ("QuantizeLinear", "DequantizeLinear")
ATTENTION = "GroupQueryAttention"
STATE = ("ScatterElements", ATTENTION, "Cast")
"""Operators whose results may be codes, which a dequantizer reads: writes into state; a Cast ends the unpacking of bytes."""


def original_name(name: str) -> str:
    """Return the name of a node or a tensor without the suffix that layout passes append.

    >>> original_name("conv_token_3")
    'conv'
    """
    return re.sub(r"(_token_\d+)+$", "", name)


def reader(model: Any) -> QdqModel:
    """Return an index of a model.  It is imported here, so that `import qfunc` does not import onnx."""
    from qfunc.lowering.qdq.reader import QdqModel

    return QdqModel(model)


def codes_of(node: Any, source: QdqModel) -> list[str]:
    """Return the first code tensor of each result of an op, also after an activation; a write into state gives codes itself."""
    codes = []
    for output in node.output:
        readers = source.readers.get(output, [])
        if node.op_type in STATE and any(r.op_type == "DequantizeLinear" for r in readers):
            codes.append(output)
        while len(readers) == 1 and readers[0].op_type in ("Relu", "Clip"):
            readers = source.readers.get(readers[0].output[0], [])
        codes += [r.output[0] for r in readers if r.op_type == "QuantizeLinear"][:1]
    return codes


def code_tensors(original: Any) -> list[str]:
    """Return the tensors of codes of a Q/DQ model: the results of quantizers, and of writes into state."""
    source = reader(original)
    codes = (n.output[:1] if n.op_type == "QuantizeLinear" else codes_of(n, source) if n.op_type in STATE else ()
             for n in original.graph.node)  # fmt: skip
    return [name for names in codes for name in names]


def element_types(model: Any) -> dict[str, int]:
    """Return tensor -> element type in an optimised graph, by the schemas of ONNX; for com.microsoft those of an input."""
    graph, version = model.graph, next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
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
        for output, known in zip(node.output, _by_schema(node, version, types), strict=True):
            types.setdefault(output, known or element_type)
    return types


def _by_schema(node: Any, version: int, types: dict[str, int]) -> list[int]:
    # The element types of the results, 0 where the schema leaves them to an attribute.
    from onnx import TensorProto, defs

    if node.op_type == "Cast":
        return [next(a.i for a in node.attribute if a.name == "to")]  # it may also have `saturate`
    if node.op_type == ATTENTION:  # the second and third result are the caches, whose types are those of the inputs
        return [0, *(types.get(name, 0) for name in node.input[3:5]), 0][: len(node.output)]
    if node.domain not in ("", "ai.onnx") or not defs.has(node.op_type, version, ""):
        return [0] * len(node.output)
    schema = defs.get_schema(node.op_type, version, "")
    one = {c.type_param_str: c.allowed_type_strs[0] for c in schema.type_constraints if len(c.allowed_type_strs) == 1}
    given = {f.type_str: types.get(name, 0) for name, f in zip(node.input, schema.inputs, strict=False) if name}
    found = list[int]()
    for i in range(len(node.output)):
        formal = schema.outputs[min(i, len(schema.outputs) - 1)].type_str
        text = re.fullmatch(r"tensor\((\w+)\)", one.get(formal, formal))
        found.append(TensorProto.DataType.Value(text[1].upper()) if text else given.get(formal, 0))
    return found
