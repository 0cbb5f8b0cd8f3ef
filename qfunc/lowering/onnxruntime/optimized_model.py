"""The integer tensors of a model that ONNX Runtime optimises, and the partition that ONNX Runtime chooses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from qfunc.lowering.onnxruntime.session import Session

if TYPE_CHECKING:
    from qfunc.lowering.qdq_reader import QdqModel

_INTEGER_TYPES = (2, 3)  # TensorProto.UINT8, INT8
_PAIR = ("QuantizeLinear", "DequantizeLinear")


@frozen(eq=False)
class OptimizedModel:
    """An optimised model whose tensors of codes are outputs, and the difference that this makes to its kernels.

    `units` maps each code tensor to "integer", "float" (quantized from a float tensor) or "gone" (the optimised graph has
    neither the op nor its codes). It also maps each real tensor that an integer kernel computes to "integer".
    """

    plain: Session
    exposed: Session
    units: dict[str, str]
    difference: str
    original: Any = field(repr=False)

    @property
    def tensors(self) -> frozenset[str]:
        """The names of the tensors of codes."""
        return frozenset(self.exposed.outputs) - frozenset(self.plain.outputs)

    def run(self, inputs: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return (the outputs of the model as deployed, code tensor -> codes).

        An additional output can move a layout change, and with it the order of a broadcast sum.  If that changes an output
        of the model, the codes come from the optimised graph instead, with its inner tensors as outputs.
        """
        outputs = self.plain.run(inputs)
        codes = dict(zip(self.exposed.outputs, self.exposed.run(inputs), strict=True))
        if all((codes[name] == value).all() for name, value in zip(self.plain.outputs, outputs, strict=True)):
            return outputs, codes
        return outputs, codes | _codes_as_run(self.original, self.plain.optimised, inputs)


def optimized_model(model: bytes, threads: int = 0) -> OptimizedModel:
    """Load a model twice: as deployed, and with every code tensor of the optimised graph as an output.

    A tensor that optimisation removes, such as that of two transposes that cancel, is "gone" in `units` and no output,
    because an output would restore it.  Other outputs could still change the fusions: `difference` describes where the
    two optimised graphs differ, or is "".
    """
    import onnx

    from qfunc.files.onnx_model import read_model

    original = read_model(model)
    plain = Session(model, threads=threads, saved=True)
    units = _units(original, plain.optimised)
    exposed = onnx.ModelProto()
    exposed.CopyFrom(original)
    element_types = {i.name: i.data_type for i in original.graph.initializer}
    for node in original.graph.node:
        if node.op_type == "QuantizeLinear" and units.get(node.output[0]) != "gone":
            info = onnx.helper.make_tensor_value_info(node.output[0], element_types[node.input[2]], None)
            exposed.graph.output.append(info)
    exposed_session = Session(exposed.SerializeToString(), threads=threads, saved=True)
    return OptimizedModel(plain, exposed_session, units, _difference(original, units, plain, exposed_session), original)


def _codes_as_run(original: Any, optimised: Any, inputs: Sequence[Any]) -> dict[str, Any]:
    """Return code tensor -> codes in the layout of the original model, computed by the optimised graph."""
    import onnx

    graph, element_types = onnx.ModelProto(), _element_types(optimised)
    graph.CopyFrom(optimised)
    source = _reader(original)
    original_nodes = {n.name: n for n in original.graph.node}
    places: dict[str, tuple[str, list[int] | None]] = {}
    orders: dict[str, list[int] | None] = {}  # tensor -> the transpose to its original layout
    outputs = {o.name for o in optimised.graph.output}
    for node in optimised.graph.node:
        name = _original_name(node.name)
        order = next((orders[i] for i in node.input if orders.get(i)), None)
        if node.op_type == "Transpose" and name not in original_nodes:
            perm = list(node.attribute[0].ints)
            order = [perm.index(k) for k in order or range(len(perm))]
            order = None if order == sorted(order) else order
        elif name in original_nodes:
            written = original_nodes[name]
            codes = written.output if written.op_type == "QuantizeLinear" else _codes_of(written, source)
            if element_types.get(node.output[0]) in _INTEGER_TYPES:
                places |= {q: (tensor, order) for q, tensor in zip(codes, node.output, strict=False)}
        orders |= dict.fromkeys(node.output, order)
    for tensor, _ in places.values():
        if tensor not in outputs:
            outputs.add(tensor)
            graph.graph.output.append(onnx.helper.make_tensor_value_info(tensor, element_types[tensor], None))
    session = Session(graph.SerializeToString(), optimise=False)
    values = dict(zip(session.outputs, session.run(inputs), strict=True))
    return {q: values[t] if order is None else values[t].transpose(order) for q, (t, order) in places.items()}


def _difference(original: Any, units: dict[str, str], plain: Session, exposed: Session) -> str:
    # Ignore transposes and the pairs around them: they depend on the layout, and change no codes.
    source = _reader(original)
    transposed = {q for n in original.graph.node if n.op_type == "Transpose" for q in _codes_of(n, source)}
    pairs = {n.name for n in original.graph.node if n.op_type in _PAIR and transposed.intersection([*n.input[:1], *n.output])}
    names = {n.name for n in original.graph.node} - pairs
    left, right = (_count_ops(s.optimised, names) for s in (plain, exposed))
    differs = [f"{op}: {left.get(op, 0)} and {right.get(op, 0)}" for op in sorted(left.keys() | right.keys())
               if left.get(op, 0) != right.get(op, 0)]  # fmt: skip
    others = _units(original, exposed.optimised)
    differs += [f"{q}: {units[q]} and {others.get(q)}" for q in units if q not in transposed and units[q] != others.get(q)]
    return f"reading the inner tensors changes the fusions: {'; '.join(differs)}" if differs else ""


def _count_ops(model: Any, names: set[str]) -> dict[str, int]:
    # Count the ops by type, without transposes and the runtime's pairs around them, which depend on the outputs.
    counts: dict[str, int] = {}
    redundant = _redundant_pairs(model)
    for node in model.graph.node:
        is_added = _original_name(node.name) not in names or node.name in redundant
        if node.op_type == "Transpose" or (node.op_type in _PAIR and is_added):
            continue
        name = {"NhwcMaxPool": "MaxPool"}.get(node.op_type, node.op_type)
        counts[name] = counts.get(name, 0) + 1
    return counts


def _original_name(name: str) -> str:
    # Layout passes append a suffix to the names of nodes: x_token_3.
    return re.sub(r"(_token_\d+)+$", "", name)


def _units(original: Any, optimised: Any) -> dict[str, str]:
    """Return code tensor -> the unit of the op that produces it; the two graphs are joined by node names."""
    source = _reader(original)
    codes_of = {n.name: codes for n in original.graph.node if n.op_type not in _PAIR and (codes := _codes_of(n, source))}
    names = {n.name for n in original.graph.node}
    element_types = _element_types(optimised)
    units: dict[str, str] = {}
    for node in optimised.graph.node:
        name = _original_name(node.name)
        if node.op_type in _PAIR or (node.op_type == "Transpose" and name not in names):
            continue
        is_integer = element_types.get(node.output[0]) in _INTEGER_TYPES
        for q in codes_of.get(name, ()):
            units[q] = "integer" if is_integer and units.get(q) != "float" else "float"
    redundant = _redundant_pairs(optimised)
    quantizers = [n for n in optimised.graph.node if n.op_type == "QuantizeLinear" and n.name not in redundant]
    quantized = {_original_name(n.name) for n in quantizers}
    products = [n for n in optimised.graph.node if n.op_type == "QGemm" and element_types[n.output[0]] not in _INTEGER_TYPES]
    real_products = {n.output[0]: "integer" for n in products}
    return real_products | {
        q: units.get(q, "float" if q in quantized else "gone") for codes in codes_of.values() for q in codes
    }


def _redundant_pairs(model: Any) -> set[str]:
    """Return the names of pairs that dequantize and quantize with equal qparams, since their transpose was removed."""
    import onnx

    source = _reader(model)
    values = {name: onnx.numpy_helper.to_array(i).tolist() for name, i in source.initializers.items() if not i.dims}
    redundant = set()
    for node in model.graph.node:
        dequantizer = source.dequantizer(node.input[0]) if node.op_type == "QuantizeLinear" else None
        if dequantizer is not None:
            qparams = [[values.get(name, name) for name in n.input[1:]] for n in (dequantizer, node)]
            if qparams[0] == qparams[1]:
                redundant.add(node.name)
    dequantizers = [n for n in model.graph.node if n.op_type == "DequantizeLinear"]
    orphans = [n for n in dequantizers if (r := source.readers.get(n.output[0])) and all(x.name in redundant for x in r)]
    return redundant.union(n.name for n in orphans)


def _reader(model: Any) -> QdqModel:
    # Import here, so that `import qfunc` does not import onnx.
    from qfunc.lowering.qdq_reader import QdqModel

    return QdqModel(model)


def _codes_of(node: Any, source: QdqModel) -> list[str]:
    """Return the first code tensor of each result of an op, also after an activation."""
    codes = []
    for output in node.output:
        readers = source.readers.get(output, [])
        while len(readers) == 1 and readers[0].op_type in ("Relu", "Clip"):
            readers = source.readers.get(readers[0].output[0], [])
        codes += [r.output[0] for r in readers if r.op_type == "QuantizeLinear"][:1]
    return codes


def _element_types(model: Any) -> dict[str, int]:
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
        for output in node.output:
            types.setdefault(output, element_type)
    return types
