"""Inside ONNX Runtime: the integer tensors of a default-optimised model and the partition it chose itself."""

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
    """A default-optimised model whose integer tensors are visible, and proof that it runs the same kernels.

    `units` maps each code tensor to "integer", "float" (quantized from a float tensor) or "gone" (neither
    op nor codes stayed), as ONNX Runtime partitioned the model itself; and real tensors that integer kernels make.
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

        Reading a tensor can move a layout change, and with it the order of a broadcast sum.  If an output
        shows that, the optimised graph itself is run with its inner tensors as outputs.
        """
        outputs = self.plain.run(inputs)
        codes = dict(zip(self.exposed.outputs, self.exposed.run(inputs), strict=True))
        if all((codes[name] == value).all() for name, value in zip(self.plain.outputs, outputs, strict=True)):
            return outputs, codes
        return outputs, codes | _as_run(self.original, self.plain.optimised, inputs)


def optimized_model(model: bytes, threads: int = 0) -> OptimizedModel:
    """Opens a model twice: as deployed, and with every code tensor that the runtime still has as an output.

    A tensor that left the graph (of a slice over everything, of transposes that cancel) would come back if
    it were read, so it stays hidden; `units` calls it "gone".  Reading any other could still change what is
    fused; `difference` describes where the two optimised graphs differ, or is "".
    """
    import onnx

    from qfunc.lowering.onnx_file import read_model

    original = read_model(model)
    plain = Session(model, threads=threads, saved=True)
    units = _units(original, plain.optimised)
    exposed = onnx.ModelProto()
    exposed.CopyFrom(original)
    element = {i.name: i.data_type for i in original.graph.initializer}
    for node in original.graph.node:
        if node.op_type == "QuantizeLinear" and units.get(node.output[0]) != "gone":
            info = onnx.helper.make_tensor_value_info(node.output[0], element[node.input[2]], None)
            exposed.graph.output.append(info)
    opened = Session(exposed.SerializeToString(), threads=threads, saved=True)
    return OptimizedModel(plain, opened, units, _difference(original, units, plain, opened), original)


def _as_run(original: Any, optimised: Any, inputs: Sequence[Any]) -> dict[str, Any]:
    """Code tensor -> codes, in the layout in which the model was written, read from the optimised graph."""
    import onnx

    graph, element = onnx.ModelProto(), _elements(optimised)
    graph.CopyFrom(optimised)
    source = _reader(original)
    own = {n.name: n for n in original.graph.node}
    places: dict[str, tuple[str, list[int] | None]] = {}
    back: dict[str, list[int] | None] = {}  # how to transpose a tensor into the layout as written
    have = {o.name for o in optimised.graph.output}
    for node in optimised.graph.node:
        name = _own(node.name)
        order = next((back[i] for i in node.input if back.get(i)), None)
        if node.op_type == "Transpose" and name not in own:
            turn = list(node.attribute[0].ints)
            order = [turn.index(k) for k in order or range(len(turn))]
            order = None if order == sorted(order) else order
        elif name in own:
            made = own[name].output if own[name].op_type == "QuantizeLinear" else _codes_of(own[name], source)
            if element.get(node.output[0]) in _INTEGER_TYPES:
                places |= {q: (tensor, order) for q, tensor in zip(made, node.output, strict=False)}
        back |= dict.fromkeys(node.output, order)
    for tensor, _ in places.values():
        if tensor not in have:
            have.add(tensor)
            graph.graph.output.append(onnx.helper.make_tensor_value_info(tensor, element[tensor], None))
    session = Session(graph.SerializeToString(), optimise=False)
    values = dict(zip(session.outputs, session.run(inputs), strict=True))
    return {q: values[t] if order is None else values[t].transpose(order) for q, (t, order) in places.items()}


def _difference(original: Any, units: dict[str, str], plain: Session, opened: Session) -> str:
    # Transposes come and go with the layout, and what is written around them too: their codes change in no way.
    source = _reader(original)
    turned = {q for n in original.graph.node if n.op_type == "Transpose" for q in _codes_of(n, source)}
    pairs = {n.name for n in original.graph.node if n.op_type in _PAIR and turned.intersection([*n.input[:1], *n.output])}
    own = {n.name for n in original.graph.node} - pairs
    left, right = (_kinds(s.optimised, own) for s in (plain, opened))
    differs = [f"{op}: {left.get(op, 0)} and {right.get(op, 0)}" for op in sorted(left.keys() | right.keys())
               if left.get(op, 0) != right.get(op, 0)]  # fmt: skip
    again = _units(original, opened.optimised)
    differs += [f"{q}: {units[q]} and {again.get(q)}" for q in units if q not in turned and units[q] != again.get(q)]
    return f"reading the inner tensors changes what is fused: {'; '.join(differs)}" if differs else ""


def _kinds(model: Any, own: set[str]) -> dict[str, int]:
    # Layout changes move with the outputs: transposes, and the pairs that the runtime puts around them.
    counts: dict[str, int] = {}
    idle = _idle(model)
    for node in model.graph.node:
        if node.op_type == "Transpose" or (node.op_type in _PAIR and (_own(node.name) not in own or node.name in idle)):
            continue
        name = {"NhwcMaxPool": "MaxPool"}.get(node.op_type, node.op_type)
        counts[name] = counts.get(name, 0) + 1
    return counts


def _own(name: str) -> str:
    # Layout passes rename what they touch: x_token_3.
    return re.sub(r"(_token_\d+)+$", "", name)


def _units(original: Any, optimised: Any) -> dict[str, str]:
    """Code tensor -> what became of the op that produces it, joined by node names."""
    source = _reader(original)
    codes_of = {n.name: codes for n in original.graph.node if n.op_type not in _PAIR and (codes := _codes_of(n, source))}
    own = {n.name for n in original.graph.node}
    element = _elements(optimised)
    found: dict[str, str] = {}
    for node in optimised.graph.node:
        name = _own(node.name)
        if node.op_type in _PAIR or (node.op_type == "Transpose" and name not in own):
            continue
        is_integer = element.get(node.output[0]) in _INTEGER_TYPES
        for q in codes_of.get(name, ()):
            found[q] = "integer" if is_integer and found.get(q) != "float" else "float"
    idle = _idle(optimised)
    kept = {_own(n.name) for n in optimised.graph.node if n.op_type == "QuantizeLinear" and n.name not in idle}
    products = [n for n in optimised.graph.node if n.op_type == "QGemm" and element[n.output[0]] not in _INTEGER_TYPES]
    into_real = {n.output[0]: "integer" for n in products}
    return into_real | {q: found.get(q, "float" if q in kept else "gone") for codes in codes_of.values() for q in codes}


def _idle(model: Any) -> set[str]:
    """Pairs that dequantize and quantize by the same qparams: between the two stood a transpose that is gone."""
    import onnx

    source = _reader(model)
    values = {name: onnx.numpy_helper.to_array(i).tolist() for name, i in source.initializers.items() if not i.dims}
    found = set()
    for node in model.graph.node:
        before = source.dequantizer(node.input[0]) if node.op_type == "QuantizeLinear" else None
        if before is not None:
            qparams = [[values.get(name, name) for name in n.input[1:]] for n in (before, node)]
            if qparams[0] == qparams[1]:
                found.add(node.name)
    dequantizers = [n for n in model.graph.node if n.op_type == "DequantizeLinear"]
    alone = [n for n in dequantizers if (r := source.readers.get(n.output[0])) and all(reader.name in found for reader in r)]
    return found.union(n.name for n in alone)


def _reader(model: Any) -> QdqModel:
    # onnx is imported here, where it is first needed.
    from qfunc.lowering.qdq_reader import QdqModel

    return QdqModel(model)


def _codes_of(node: Any, source: QdqModel) -> list[str]:
    """Return the code tensor of each of an op's results, the first one, also after an activation."""
    found = []
    for output in node.output:
        following = source.readers.get(output, [])
        while len(following) == 1 and following[0].op_type in ("Relu", "Clip"):
            following = source.readers.get(following[0].output[0], [])
        found += [r.output[0] for r in following if r.op_type == "QuantizeLinear"][:1]
    return found


def _elements(model: Any) -> dict[str, int]:
    """Element types in an optimised graph; contributed ops carry no shape inference, so by their inputs."""
    graph = model.graph
    element = {i.name: i.data_type for i in graph.initializer}
    element |= {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    at = {
        "QLinearConv": 7,
        "QLinearMatMul": 7,
        "QGemm": 8,
        "QLinearAdd": 7,
        "QLinearMul": 7,
        "QLinearConcat": 1,
        "QuantizeLinear": 2,
    }
    for node in graph.node:
        index = at.get(node.op_type, 0)
        source = node.input[index] if index < len(node.input) else ""
        kind = 1 if node.op_type == "DequantizeLinear" or not source else element.get(source, 1)
        for output in node.output:
            element.setdefault(output, kind)
    return element
