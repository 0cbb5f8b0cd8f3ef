"""Inside a model that ONNX Runtime runs as it is written: every tensor of codes, by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from qfunc.lowering.onnxruntime.session import Session


@frozen(eq=False)
class UnoptimizedModel:
    """A model without optimisation whose tensors NAME.codes are outputs, as int32.

    `units` maps each of them to "integer", made by an operator on codes, or "float", quantized from a float tensor; None
    for a model that has no operators on codes, where nothing but quantizers runs on integers.
    """

    session: Session
    tensors: frozenset[str]
    units: dict[str, str] | None
    difference: str = ""

    def run(self, inputs: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return (the outputs, code tensor -> codes)."""
        values = dict(zip(self.session.outputs, self.session.run(inputs), strict=True))
        codes = {name: values.pop(f"{name}.seen") for name in self.tensors}
        return list(values.values()), codes


def unoptimized_model(model: bytes, threads: int = 0) -> UnoptimizedModel:
    """Opens a model with its tensors of codes as outputs."""
    # onnx is imported here, where it is first needed.
    import onnx

    from qfunc.lowering.onnx_file import read_model

    shown = read_model(model)
    made = {o: n.op_type for n in shown.graph.node for o in n.output if o.endswith(".codes")}
    for name in made:  # cast, for arrays have no codes of 4 bits
        shown.graph.node.append(onnx.helper.make_node("Cast", [name], [f"{name}.seen"], to=onnx.TensorProto.INT32))
        shown.graph.output.append(onnx.helper.make_tensor_value_info(f"{name}.seen", onnx.TensorProto.INT32, None))
    session = Session(shown.SerializeToString(), optimise=False, threads=threads)
    units = {name: "float" if op == "QuantizeLinear" else "integer" for name, op in made.items()}
    return UnoptimizedModel(session, frozenset(made), units if "integer" in units.values() else None)


__all__ = ["UnoptimizedModel", "unoptimized_model"]
