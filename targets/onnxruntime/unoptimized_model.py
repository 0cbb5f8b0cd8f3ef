"""The tensors of codes of a model that ONNX Runtime runs without optimisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from qfunc.lowering.machines.process import Machine, opened
from qfunc.lowering.onnxruntime.session import Session


@frozen(eq=False)
class UnoptimizedModel:
    """A model without optimisation, with each tensor NAME.codes as an int32 output.

    `units` maps each of them to "integer" (the result of an operator on codes) or "float" (quantized from a float tensor).
    It is None if no operator computes on codes.
    """

    session: Any
    tensors: frozenset[str]
    units: dict[str, str] | None
    difference: str = ""

    def run(self, inputs: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return (the outputs, code tensor -> codes)."""
        values = dict(zip(self.session.outputs, self.session.run(inputs), strict=True))
        codes = {name: values.pop(f"{name}.seen") for name in self.tensors}
        return list(values.values()), codes


def unoptimized_model(model: bytes, threads: int = 0, machine: Machine | None = None) -> UnoptimizedModel:
    """Load a model with its tensors of codes as outputs."""
    # Import here, so that `import qfunc` does not import onnx.
    import onnx

    from qfunc.files.onnx_model import read_model

    exposed = read_model(model)
    producers = {o: n.op_type for n in exposed.graph.node for o in n.output if o.endswith(".codes")}
    for name in producers:  # cast, because numpy has no 4-bit integers
        exposed.graph.node.append(onnx.helper.make_node("Cast", [name], [f"{name}.seen"], to=onnx.TensorProto.INT32))
        exposed.graph.output.append(onnx.helper.make_tensor_value_info(f"{name}.seen", onnx.TensorProto.INT32, None))
    session = opened(machine, Session, exposed.SerializeToString(), optimise=False, threads=threads)
    units = {name: "float" if op == "QuantizeLinear" else "integer" for name, op in producers.items()}
    return UnoptimizedModel(session, frozenset(producers), units if "integer" in units.values() else None)


__all__ = ["UnoptimizedModel", "unoptimized_model"]
