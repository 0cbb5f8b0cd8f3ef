"""The codes that ONNX Runtime computes in an optimised graph, read from that graph, in the layouts of the original model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import frozen

from qfunc.lowering.machines.process import Machine, opened
from qfunc.lowering.onnxruntime.session import Session
from qfunc.targets.onnxruntime.optimized_graph import INTEGER_TYPES, codes_of, element_types, original_name, reader

if TYPE_CHECKING:
    from qfunc.lowering.qdq.reader import QdqModel

_KEEPS_TENSOR = ("QuantizeLinear", "DequantizeLinear", "Relu", "Clip", "Identity", "Max", "Cast")
"""With one tensor as input: the result has the layout of the input, and stands for the same tensor of the original."""

_KEEPS_LAYOUT = (
    "QLinearConv", "QLinearAdd", "QLinearMul", "QLinearConcat", "QLinearAveragePool", "QLinearGlobalAveragePool",
    "QLinearLeakyRelu", "QLinearSigmoid", "Concat", "MaxPool", "NhwcMaxPool", "Resize", "Pad", "Split", "Slice",
    "Add", "Sub", "Mul", "Div", "Min", "Max", "Pow", "PRelu", "Abs", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish",
    "LeakyRelu", "Log", "Mish", "Neg", "Selu", "Sigmoid", "Softplus", "Sqrt", "Tanh",
)  # fmt: skip
"""The result has the layout of the inputs, which is the same for all of them."""


@frozen(eq=False)
class CodesAsRun:
    """An optimised graph with tensors of codes as outputs; it is loaded without optimisation, so that its ops stay.

    `places` maps each tensor of codes to its tensor in the optimised graph, and to the axes that transpose that tensor to
    the layout of the original model, None if it has this layout.
    """

    session: Any
    places: Mapping[str, Place]

    def run(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """Return code tensor -> codes in the layout of the original model."""
        values = dict(zip(self.session.outputs, self.session.run(inputs), strict=True))
        return {q: values[t] if axes is None else values[t].transpose(axes) for q, (t, axes) in self.places.items()}


Axes = tuple[int, ...] | None


class Place(NamedTuple):
    """A tensor, and the axes that transpose it to the layout of the tensor of the original model that it stands for."""

    tensor: str
    axes: Axes


def codes_as_run(
    original: Any, optimised: Any, tensors: Set[str], threads: int = 0, machine: Machine | None = None
) -> CodesAsRun:
    """Load an optimised graph with those of the tensors of codes as outputs whose layouts are known."""
    import onnx

    graph, types = onnx.ModelProto(), element_types(optimised)
    graph.CopyFrom(optimised)
    places = {q: place for q, place in _places(original, optimised, types).items() if q in tensors}
    shown = {o.name for o in optimised.graph.output}
    wanted = dict.fromkeys(place.tensor for place in places.values() if place.tensor not in shown)
    graph.graph.output.extend(onnx.helper.make_tensor_value_info(t, types[t], None) for t in wanted)
    return CodesAsRun(opened(machine, Session, graph.SerializeToString(), optimise=False, threads=threads), places)


def _places(original: Any, optimised: Any, types: Mapping[str, int]) -> dict[str, Place]:
    source, written_types = reader(original), element_types(original)

    def holds(q: str, tensor: str) -> bool:  # the runtime makes uint8 of some int8 codes, with other zero points
        return types.get(tensor) in INTEGER_TYPES and types.get(tensor) == written_types.get(q)

    layouts, places = _Layouts(source, optimised), dict[str, Place]()
    for node in optimised.graph.node:
        layouts.visit(node)
        written = layouts.written.get(original_name(node.name))
        codes: Sequence[str] = ()
        if written is not None:
            codes = written.output if written.op_type == "QuantizeLinear" else codes_of(written, source)
        for q, tensor in zip(codes, node.output, strict=False):
            known = layouts.known.get(tensor)
            if holds(q, tensor) and known is not None and known.tensor == layouts.base(q):
                places[q] = Place(tensor, known.axes)
    computed = (o for n in optimised.graph.node for o in n.output if holds(o, o))
    return places | {tensor: Place(tensor, None) for tensor in computed if tensor in source.producers}


class _Layouts:
    """For each tensor of an optimised graph: the tensor of the original that it stands for, and the axes to its layout.

    Optimisation keeps what a name stands for: only tensors with new names can have another layout.
    """

    def __init__(self, source: QdqModel, optimised: Any) -> None:
        self.written = {n.name: n for n in source.graph.node}
        self.names = {*source.producers, *(i.name for i in source.graph.input)}
        self.constants = {*source.initializers, *(i.name for i in optimised.graph.initializer)}
        self.bases: dict[str, str] = {}
        for node in source.graph.node:
            if _keeps_tensor(node):
                self.bases[node.output[0]] = self.base(node.input[0])
        self.known = {i.name: Place(i.name, None) for i in optimised.graph.input}

    def base(self, name: str) -> str:
        """Return the tensor before the quantizers and activations that produce a tensor of the original."""
        return self.bases.get(name, name)

    def visit(self, node: Any) -> None:
        """Add the outputs of a node, as far as they are known."""
        for index, output in enumerate(node.output):
            place = Place(self.base(output), None) if output in self.names else self._derived(node, index)
            if place is not None:
                self.known[output] = place

    def _derived(self, node: Any, index: int) -> Place | None:
        given = [self.known.get(n) for n in node.input if n and n not in self.constants]
        first, written = given[0] if given else None, self.written.get(original_name(node.name))
        if first is None:
            return None
        if node.op_type == "Transpose":
            return self._transposed(node, written, first)
        if _keeps_tensor(node):
            return first
        if written is None or (first.axes is not None and node.op_type not in _KEEPS_LAYOUT):
            return None
        read = {self.base(n) for n in written.input if n} - self.constants
        # Where an op of the original is gone, such as a transpose that another one cancels, the inputs are other tensors.
        if any(place is None or place.axes != first.axes for place in given) or read != {p.tensor for p in given if p}:
            return None
        return Place(self.base(written.output[index]), first.axes)

    def _transposed(self, node: Any, written: Any, given: Place) -> Place | None:
        perm = _perm(node)
        before, own, tensor = given.axes or tuple(range(len(perm))), tuple(range(len(perm))), given.tensor
        if written is not None:
            if self.base(written.input[0]) != given.tensor:
                return None
            own, tensor = _perm(written), self.base(written.output[0])
        axes = tuple(perm.index(before[k]) for k in own)
        return Place(tensor, None if axes == tuple(sorted(axes)) else axes)


def _keeps_tensor(node: Any) -> bool:
    return node.op_type in _KEEPS_TENSOR and (node.op_type != "Max" or len(node.input) == 1)


def _perm(node: Any) -> tuple[int, ...]:
    return next(tuple(a.ints) for a in node.attribute if a.name == "perm")
