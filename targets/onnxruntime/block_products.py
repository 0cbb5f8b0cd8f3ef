"""The real tensors of a model with MatMulNBits, as ONNX Runtime computes them, and the level of each product."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from attrs import frozen

from qfunc.lowering.machines.process import Machine, opened
from qfunc.lowering.onnxruntime.session import Session
from qfunc.targets.onnxruntime.attended_positions import positions_check
from qfunc.targets.onnxruntime.group_query_attention import with_results
from qfunc.targets.onnxruntime.optimized_graph import ATTENTION, STATE, code_tensors, element_types

OPERATOR, LOOKUP, MIXTURE, _DOMAIN = "MatMulNBits", "GatherBlockQuantized", "QMoE", "com.microsoft"
_REAL = 1  # TensorProto.FLOAT


@frozen(eq=False)
class ModelWithProducts:
    """An optimised model, and the same graph with its real tensors as outputs; it is loaded without optimisation again.

    `reals` are the tensors that the model as deployed has, too.  `units` maps each product with a weight in blocks to
    "integer" if the session quantizes its input to int8, else to "float", and each write of codes
    into state, and attention to it, to "integer".
    `tensors` are the tensors of codes.  `check` raises for positions that attention does not take.  `difference`: the graph
    with its tensors as outputs has other outputs of the model, or "".
    """

    plain: Any
    shown: Any
    reals: frozenset[str]
    units: Mapping[str, str]
    tensors: frozenset[str]
    check: Callable[[Sequence[Any]], None]
    difference: str = ""

    def run(self, inputs: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return (the outputs of the model as deployed, real tensor or tensor of codes -> values)."""
        self.check(inputs)
        values = dict(zip(self.shown.outputs, self.shown.run(inputs), strict=True))
        return self.plain.run(inputs), {name: values[name] for name in self.reals | self.tensors}


def model_with_products(model: bytes, threads: int = 0, machine: Machine | None = None) -> ModelWithProducts | None:
    """Load a model with weights in blocks; None if it has none, or if the runtime of `machine` saves no optimised graphs."""
    import onnx

    from qfunc.files.onnx_model import read_model

    original = read_model(model)
    if not any(node.op_type in (OPERATOR, LOOKUP, MIXTURE) for node in original.graph.node):
        return None
    plain = opened(machine, Session, model, threads=threads, saved=True)
    if not plain.saved:
        return None
    graph = with_results(onnx.load_from_string(plain.saved))
    written = {name for node in original.graph.node for name in node.output}
    computed = [name for node in graph.graph.node for name in node.output if name in written]
    types, coded = element_types(graph), set(code_tensors(original))
    reals = [name for name in computed if types.get(name, _REAL) == _REAL]
    codes = [name for name in computed if name in coded]
    outputs = {o.name for o in graph.graph.output}
    infos = (onnx.helper.make_tensor_value_info(n, types.get(n, _REAL), None) for n in (*reals, *codes) if n not in outputs)
    graph.graph.output.extend(infos)
    shown = opened(machine, Session, graph.SerializeToString(), optimise=False, threads=threads)
    level = partial(_unit, threads=threads, machine=machine)
    forms = {node.name: _form(node) for node in graph.graph.node if node.op_type in (OPERATOR, MIXTURE)}
    states = {form: level(*form) for form in dict.fromkeys(forms.values())}
    units = {name: states[form] for name, form in forms.items()}
    units |= {name: "integer" for n in graph.graph.node if n.op_type in STATE for name in n.output if name in coded}
    units |= {n.name: "integer" for n in graph.graph.node if n.op_type == ATTENTION}
    return ModelWithProducts(plain, shown, frozenset(reals), units, frozenset(codes), positions_check(model))


def _form(node: Any) -> tuple[int, int, int]:
    fields = {a.name: a.i for a in node.attribute}
    bits = fields["bits" if node.op_type == OPERATOR else "expert_weight_bits"]
    return bits, fields["block_size"], fields.get("accuracy_level", 0)


def _unit(bits: int, block: int, level: int, threads: int, machine: Machine | None) -> str:
    # Whether such products quantize their input.  Beside 127, the codes of all 1/4 are 0; the weights are -2^(bits - 1).
    from onnx import helper, numpy_helper

    arrays: dict[str, np.ndarray[Any, Any]] = {"codes": np.zeros((1, 1, block * bits // 8), np.uint8)}
    arrays["scales"] = np.ones(1, np.float32)
    node = helper.make_node(
        OPERATOR, ["x", *arrays], ["y"], domain=_DOMAIN, K=block, N=1, bits=bits, block_size=block,
        accuracy_level=level,
    )  # fmt: skip
    ends = [helper.make_tensor_value_info(name, _REAL, [1, size]) for name, size in (("x", block), ("y", 1))]
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_DOMAIN, 1)]
    graph = helper.make_graph([node], "level", ends[:1], ends[1:], weights)
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    x = np.full((1, block), 0.25, np.float32)
    x[0, 0] = 127.0
    (product,) = opened(machine, Session, made.SerializeToString(), threads=threads).run([x])
    return "integer" if float(product[0, 0]) == -127.0 * 2 ** (bits - 1) else "float"
