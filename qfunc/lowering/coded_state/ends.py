"""State in codes: inputs that a model writes into and returns, such as a cache, are integers in its file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from qfunc.lowering.coded_state.names import SCALE_KEY, ZERO_POINT_KEY

if TYPE_CHECKING:
    from qfunc.lowering.qdq.reader import QdqModel

_KEYS = (SCALE_KEY, ZERO_POINT_KEY)
_ZERO_POINT = "ends.zero_point"


class _State(NamedTuple):
    """The nodes of one state: x -> quantize -> dequantize -> write (of dequantized values) -> result -> dequantized outputs."""

    quantize: Any
    dequantize: Any
    write: Any
    values: Any
    result: Any
    outputs: list[Any]


def with_coded_state(model: Any) -> Any:
    """Return a Q/DQ model in which each state is codes: the input, what is written into it, and the output.

    A state is an input with codes of 8 bits that one ScatterElements writes into, with codes of the same qparams at what it
    writes, at its result and at an output of the model.  ScatterElements moves codes as it moves real values, so every
    tensor has the values that it had.  The qparams of inputs and outputs are in the model's `quantization_annotation`.

    Source: ONNX, onnx.proto, TensorAnnotation; ONNX operators, ScatterElements-18.
    """
    # Import here, so that `import qfunc` does not import onnx.
    import onnx

    from qfunc.lowering.qdq.reader import QdqModel

    source = QdqModel(model)
    states = [s for node in model.graph.node if node.op_type == "ScatterElements" and (s := _state(node, source))]
    if not states:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for state in states:
        _write_codes(made.graph, state, source)
    return made


def _state(write: Any, source: QdqModel) -> _State | None:
    dequantize, expand = source.dequantizer(write.input[0]), source.producers.get(write.input[2])
    values = source.dequantizer(expand.input[0] if expand is not None and expand.op_type == "Expand" else write.input[2])
    result = source.only_reader(write.output[0])
    if dequantize is None or values is None or result is None or result.op_type != "QuantizeLinear":
        return None
    quantize = source.producers.get(dequantize.input[0])
    readers = source.readers.get(result.output[0], [])
    outputs = [n for n in readers if n.op_type == "DequantizeLinear" and n.output[0] in source.outputs]
    given = {i.name for i in source.graph.input}
    if quantize is None or quantize.input[0] not in given or source.only_reader(quantize.input[0]) is None or not outputs:
        return None
    before = source.readers[dequantize.output[0]]  # ScatterElements, and the Gather from which it takes a shape
    shape_only = [n for n in before if n != write and [r.op_type for r in source.readers[n.output[0]]] != ["Shape"]]
    pairs = (quantize, dequantize, values, result, *outputs)
    same = len({source.qparams(n) for n in pairs}) == 1 and len({source.constants[n.input[2]].dtype for n in pairs}) == 1
    coded = source.constants[result.input[2]].dtype.itemsize == 1 and not source.constants[result.input[1]].ndim
    return _State(quantize, dequantize, write, values, result, outputs) if same and coded and not shape_only else None


def _write_codes(graph: Any, state: _State, source: QdqModel) -> None:
    from onnx import helper

    kind, x, codes = source.initializers[state.result.input[2]].data_type, state.quantize.input[0], state.result.output[0]
    nodes = {n.output[0]: n for n in graph.node}
    if (expand := nodes[state.write.input[2]]).op_type == "Expand":
        expand.input[0] = state.values.input[0]
    else:
        nodes[state.write.output[0]].input[2] = state.values.input[0]
    for node in graph.node:
        node.input[:] = [x if name == state.dequantize.output[0] else name for name in node.input]
    nodes[state.write.output[0]].output[0] = codes
    removed = [state.quantize.output[0], state.dequantize.output[0], state.result.output[0]]
    for node in state.outputs:
        _rename(graph, node.output[0], real := f"{node.output[0]}.dequantized")
        renamed = nodes[node.output[0]]
        renamed.name = renamed.output[0] = real
        graph.node.append(helper.make_node("Identity", [codes], [node.output[0]], name=node.output[0]))
        _annotate(graph, node.output[0], state.result)
    values = state.values.output[0]
    if len(source.readers[values]) == 1 and values not in source.outputs:
        removed.append(values)
    kept = [n for n in graph.node if n.output[0] not in removed or n.op_type == "ScatterElements"]
    read = {name for n in kept for name in n.input}
    kept = [n for n in kept if not n.output[0].endswith(".dequantized") or n.output[0] in read]
    readers = source.readers[state.dequantize.output[0]]
    moved = {state.write.output[0], *(n.output[0] for n in readers), state.write.input[2], values}
    infos = [v for v in graph.value_info if v.name not in moved]
    for repeated, content in ((graph.node, kept), (graph.value_info, infos)):
        del repeated[:]
        repeated.extend(content)
    _annotate(graph, x, state.result)
    for value in (*graph.input, *graph.output):
        if value.name in (x, *(n.output[0] for n in state.outputs)):
            value.type.tensor_type.elem_type = kind


def _rename(graph: Any, old: str, new: str) -> None:
    # In the nodes that read the tensor.
    for node in graph.node:
        node.input[:] = [new if name == old else name for name in node.input]


def _annotate(graph: Any, tensor: str, quantizer: Any) -> None:
    note = graph.quantization_annotation.add(tensor_name=tensor)
    for key, name in zip(_KEYS, quantizer.input[1:3], strict=True):
        note.quant_parameter_tensor_names.add(key=key, value=name)


def coded_ends(model: bytes) -> list[str]:
    """Return the names of the inputs and outputs that are codes."""
    from qfunc.files.onnx_model import read_model

    graph = read_model(model).graph
    notes = {a.tensor_name for a in graph.quantization_annotation}
    return [v.name for v in (*graph.input, *graph.output) if v.name in notes]


def with_real_ends(model: bytes) -> bytes:
    """Return a model with a quantizer after each input in codes and a dequantizer before each output in codes.

    Its inputs and outputs are real, as those of all artifacts; a model without codes at its ends is returned as it is.
    """
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    from qfunc.files.onnx_model import read_model
    from qfunc.lowering.coded_state.packed_codes import unpack_ends

    made = unpack_ends(read_model(model))
    graph = made.graph
    given = {a.tensor_name: [p.value for p in a.quant_parameter_tensor_names] for a in graph.quantization_annotation}
    names = {name: [*values, _ZERO_POINT][:2] for name, values in given.items()}
    coded = [v for v in (*graph.input, *graph.output) if v.name in names]
    if not coded:
        return model
    if any(_ZERO_POINT in names[v.name] for v in coded):  # the codes of a GroupQueryAttention have no zero point
        graph.initializer.append(numpy_helper.from_array(np.array(0, np.int8), _ZERO_POINT))
    inputs, first = {i.name for i in graph.input}, []
    for value in coded:
        value.type.tensor_type.elem_type = TensorProto.FLOAT
        if value.name in inputs:
            _rename(graph, value.name, codes := f"{value.name}.codes")
            first.append(helper.make_node("QuantizeLinear", [value.name, *names[value.name]], [codes], name=codes))
        else:
            (node,) = (n for n in graph.node if n.output[0] == value.name)
            node.op_type = "DequantizeLinear"
            node.input.extend(names[value.name])
    nodes = [*first, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.quantization_annotation[:]
    return bytes(made.SerializeToString())
