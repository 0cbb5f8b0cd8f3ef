"""A .tflite in words: its tensors, with qparams and constants, and its operators in order."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

_SHOWN = 12
"""So many numbers of an array are written."""


def text_of(content: bytes) -> str:
    """Every table of the file but empty ones, a line each."""
    schema: Any = importlib.import_module("ai_edge_litert.schema_py_generated")
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    (graph,) = model.subgraphs
    kinds, ops = _named(schema.TensorType), _named(schema.BuiltinOperator)
    lines = [f"tflite v{model.version}, {model.description.decode()}"]
    lines += [f"inputs {_array(graph.inputs)}, outputs {_array(graph.outputs)}"]
    for signature in model.signatureDefs or ():
        ends = [" ".join(f"{m.name.decode()}={m.tensorIndex}" for m in maps) for maps in (signature.inputs, signature.outputs)]
        lines += [f"signature {signature.signatureKey.decode()}: {' -> '.join(ends)}"]
    for index, tensor in enumerate(graph.tensors):
        data, q = model.buffers[tensor.buffer].data, tensor.quantization
        held = f"{index} {tensor.name.decode()}: {kinds[tensor.type]} {_array(tensor.shape)}"
        if tensor.shapeSignature is not None and len(tensor.shapeSignature):
            held += f" signature {_array(tensor.shapeSignature)}"
        if q is not None and q.scale is not None:
            held += f" scale {_array(q.scale)} zero point {_array(q.zeroPoint)} axis {q.quantizedDimension}"
        if data is not None:
            dtype = np.dtype(kinds[tensor.type].lower())
            held += f" = {_array(np.frombuffer(bytes(data), dtype))}"
        lines.append(held)
    for operator in graph.operators:
        code = model.operatorCodes[operator.opcodeIndex]
        options = {} if operator.builtinOptions is None else vars(operator.builtinOptions)
        fields = ", ".join(f"{k}={_value(v)}" for k, v in sorted(options.items()))
        edges = f"{_array(operator.inputs)} -> {_array(operator.outputs)}"
        lines.append(f"{ops[code.builtinCode]} v{code.version} {edges} {fields}".rstrip())
    return "\n".join(lines) + "\n"


def _named(group: Any) -> dict[int, str]:
    return {v: k for k, v in vars(group).items() if isinstance(v, int)}


def _value(value: Any) -> str:
    return _array(value) if isinstance(value, np.ndarray) else str(value)


def _array(values: Any) -> str:
    flat = [v.item() for v in np.asarray(values).ravel()]
    rest = f" ... of {len(flat)}, sum {sum(flat)}" if len(flat) > _SHOWN else ""
    return f"[{' '.join(map(repr, flat[:_SHOWN]))}{rest}]"
