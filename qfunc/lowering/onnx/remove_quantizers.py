"""Remove the quantizers of a deployed model, for toolchains that read qparams from a separate file."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx
from onnx import numpy_helper

from qfunc.lowering.qdq.qparams import dequantized
from qfunc.lowering.qdq.reader import QdqModel, is_copy
from qfunc.lowering.quantized_tensor import QuantizedTensor


def float_model(model: onnx.ModelProto, sites: Iterable[QuantizedTensor], kept: Collection[str] = ()) -> onnx.ModelProto:
    """Return a new model that computes in float with the quantized weights: s (q - z), as float32 constants.

    Tensors have the names of `QuantizedTensor.places`; the given model does not change.

    Args:
        kept: Names of sites whose quantizers stay.

    >>> from onnx import parser
    >>> from qfunc.lowering.quantized_tensor import Place, QuantizedTensor
    >>> from qfunc.specs import Int
    >>> model = parser.parse_model(
    ...     '''<ir_version: 10, opset_import: ["": 21]> agraph (float[2] x) => (float[2] real)
    ...     <float s = {0.5}, int8 z = {0}> { codes = QuantizeLinear(x, s, z) real = DequantizeLinear(codes, s, z) }'''
    ... )
    >>> site = QuantizedTensor("x", "activation", "x", (), Int(8), (0.5,), (0,), "half_even", (Place("x", "real"),))
    >>> [n.op_type for n in float_model(model, [site]).graph.node]
    ['Identity']
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    source = QdqModel(copy)
    stored = set(source.initializers)
    renamed: dict[str, str] = {}
    whole: set[str] = set()
    for site in sites:
        if site.name in kept:
            whole.update(name for p in site.places for name in (p.real, p.tensor))
            continue
        for place in site.places:
            if site.role != "activation" and place.real not in stored and place.real != place.tensor:
                node = source.producers[place.real]
                value = dequantized(source.constant(node, 0), source.qparams(node))
                graph.initializer.append(numpy_helper.from_array(value, place.tensor))
                stored.add(place.tensor)
            renamed[place.real] = place.tensor
    renamed = {n.output[0]: n.input[0] for n in graph.node if is_copy(n) and n.output[0] not in whole} | renamed
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = _resolve(renamed, name)
    _rename_outputs(graph, renamed)
    prune(copy)
    return copy


def _resolve(renamed: dict[str, str], name: str) -> str:
    while renamed.get(name, name) != name:
        name = renamed[name]
    return name


def _rename_outputs(graph: onnx.GraphProto, renamed: dict[str, str]) -> None:
    # An output gets the float tensor's name, unless an input or another output already has it.
    taken = {i.name for i in graph.input} | {i.name for i in graph.initializer}
    for output in graph.output:
        name = _resolve(renamed, output.name)
        if name in taken:
            graph.node.append(onnx.helper.make_node("Identity", [name], [output.name], name=output.name))
            for node in list(graph.node)[:-1]:
                if output.name in node.output:
                    graph.node.remove(node)
        else:
            output.name = name
        taken.add(output.name)


def prune(model: onnx.ModelProto) -> None:
    """Remove the nodes, constants and functions that no output needs, in place."""
    graph = model.graph
    needed = {o.name for o in graph.output}
    needed.update(p.value for a in graph.quantization_annotation for p in a.quant_parameter_tensor_names)
    kept = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    constants = [i for i in graph.initializer if i.name in needed]
    used = {(n.domain, n.op_type) for n in kept}
    functions = [f for f in model.functions if (f.domain, f.name) in used]
    domains = {n.domain for n in kept} | {""}
    imports = [o for o in model.opset_import if o.domain in domains]
    for field, content in (("node", kept[::-1]), ("initializer", constants)):
        del getattr(graph, field)[:]
        getattr(graph, field).extend(content)
    del model.functions[:], model.opset_import[:]
    model.functions.extend(functions)
    model.opset_import.extend(imports)
