"""The integer tensors of a model that ONNX Runtime optimises, and the partition that ONNX Runtime chooses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from qfunc.lowering.code_outputs import ModelWithCodes
from qfunc.lowering.machines.process import Machine, opened
from qfunc.lowering.onnxruntime.session import Session
from qfunc.targets.onnxruntime.codes_as_run import CodesAsRun, codes_as_run
from qfunc.targets.onnxruntime.optimized_graph import (
    INTEGER_TYPES, PAIR, code_tensors, codes_of, element_types, original_name, reader,
)  # fmt: skip


@frozen(eq=False)
class OptimizedModel:
    """An optimised model, and the same graph with its tensors of codes as outputs.

    `units` maps each code tensor to "integer", "float" (quantized from a float tensor) or "gone" (the optimised graph has
    neither the op nor its codes). It also maps each real tensor that an integer kernel computes to "integer".

    If the layout of a tensor in the optimised graph is unknown, `exposed` is the original model with these outputs,
    optimised again.  This can change its kernels: `difference` describes how, or is "".
    """

    plain: Any
    as_run: CodesAsRun
    tensors: frozenset[str]
    units: dict[str, str]
    exposed: Any = None
    difference: str = ""

    def run(self, inputs: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return (the outputs of the model as deployed, code tensor -> codes).

        An additional output can move a layout change, and with it the order of a broadcast sum.  If that changes an output
        of the model, the codes come from the optimised graph, as far as their layouts are known.
        """
        outputs = self.plain.run(inputs)
        if self.exposed is None:
            return outputs, self.as_run.run(inputs)
        codes = dict(zip(self.exposed.outputs, self.exposed.run(inputs), strict=True))
        if all((codes[name] == value).all() for name, value in zip(self.plain.outputs, outputs, strict=True)):
            return outputs, codes
        return outputs, codes | self.as_run.run(inputs)


def optimized_model(model: bytes, threads: int = 0, machine: Machine | None = None) -> OptimizedModel | ModelWithCodes:
    """Load a model as deployed, and its optimised graph with every code tensor as an output.

    A tensor that optimisation removes, such as that of two transposes that cancel, is "gone" in `units` and no output.  If the
    runtime of `machine` does not save its optimised graph, the codes are additional outputs, and no units are known.
    """
    from qfunc.files.onnx_model import read_model

    original = read_model(model)
    plain = opened(machine, Session, model, threads=threads, saved=True)
    if not plain.saved:
        names = code_tensors(original)
        exposed = opened(machine, Session, _with_outputs(original, names), threads=threads)
        return ModelWithCodes(plain.run, exposed.run, dict.fromkeys(names, False))
    optimised = _optimised(plain)
    units = _units(original, optimised)
    names = [name for name in code_tensors(original) if units.get(name) != "gone"]
    tensors = frozenset(names)
    as_run = codes_as_run(original, optimised, tensors, threads, machine)
    if tensors <= as_run.places.keys():
        return OptimizedModel(plain, as_run, tensors, units)
    exposed = opened(machine, Session, _with_outputs(original, names), threads=threads, saved=True)
    return OptimizedModel(plain, as_run, tensors, units, exposed, _difference(original, units, plain, exposed))


def _optimised(session: Any) -> Any:
    import onnx

    return onnx.load_from_string(session.saved)


def _with_outputs(original: Any, names: Sequence[str]) -> bytes:
    import onnx

    exposed = onnx.ModelProto()
    exposed.CopyFrom(original)
    types = element_types(original)
    infos = (onnx.helper.make_tensor_value_info(name, types[name], None) for name in names)
    exposed.graph.output.extend(infos)
    return bytes(exposed.SerializeToString())


def _difference(original: Any, units: dict[str, str], plain: Any, exposed: Any) -> str:
    # Ignore transposes, and codes beside them, which depend on the layout; the pairs of other codes are in the units.
    source = reader(original)
    transposed = {q for n in original.graph.node if n.op_type == "Transpose" for q in codes_of(n, source)}
    left, right = (_count_ops(_optimised(s)) for s in (plain, exposed))
    differs = [f"{op}: {left.get(op, 0)} and {right.get(op, 0)}" for op in sorted(left.keys() | right.keys())
               if left.get(op, 0) != right.get(op, 0)]  # fmt: skip
    others = _units(original, _optimised(exposed))
    pairs = {q: (unit, others.get(q)) for q, unit in units.items() if q not in transposed}
    # A quantizer of a float tensor may be shared in one graph and stand alone in the other.
    differs += [f"{q}: {one} and {other}" for q, (one, other) in pairs.items() if one != other and "integer" in (one, other)]
    return f"reading the inner tensors changes the fusions: {'; '.join(differs)}" if differs else ""


def _count_ops(model: Any) -> Counter[str]:
    # Count the ops by type, without quantizers, transposes, and ops on sizes, of which the runtime joins equal ones.
    sizes = _sizes(model)
    types: list[str] = [node.op_type for node in model.graph.node if not sizes.issuperset(node.output)]
    names = ("MaxPool" if name == "NhwcMaxPool" else name for name in types)
    return Counter(name for name in names if name != "Transpose" and name not in PAIR)


def _sizes(model: Any) -> set[str]:
    # The tensors computed from shapes and constants alone.
    constants, found = {i.name for i in model.graph.initializer}, set[str]()
    for node in model.graph.node:
        given = {name for name in node.input if name} - constants
        if node.op_type == "Shape" or (given and given <= found):
            found.update(node.output)
    return found


def _units(original: Any, optimised: Any) -> dict[str, str]:
    """Return code tensor -> the unit of the op that produces it; the two graphs are joined by node names."""
    source = reader(original)
    codes_by_op = {n.name: codes for n in original.graph.node if n.op_type not in PAIR and (codes := codes_of(n, source))}
    names = {n.name for n in original.graph.node}
    types = element_types(optimised)
    units: dict[str, str] = {}
    for node in optimised.graph.node:
        name = original_name(node.name)
        if node.op_type in PAIR or (node.op_type == "Transpose" and name not in names):
            continue
        is_integer = types.get(node.output[0]) in INTEGER_TYPES
        for q in codes_by_op.get(name, ()):
            units[q] = "integer" if is_integer and units.get(q) != "float" else "float"
    redundant = _redundant_pairs(optimised)
    quantizers = [n for n in optimised.graph.node if n.op_type == "QuantizeLinear" and n.name not in redundant]
    quantized = {original_name(n.name) for n in quantizers}
    products = [n for n in optimised.graph.node if n.op_type == "QGemm" and types[n.output[0]] not in INTEGER_TYPES]
    real_products = {n.output[0]: "integer" for n in products}
    return real_products | {
        q: units.get(q, "float" if q in quantized else "gone") for codes in codes_by_op.values() for q in codes
    }


def _redundant_pairs(model: Any) -> set[str]:
    """Return the names of pairs that dequantize and quantize with equal qparams, since their transpose was removed."""
    import onnx

    source = reader(model)
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
