"""A model with DynamicQuantizeLSTM whose layers' real inputs and results are outputs, beside its tensors of codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from qfunc.lowering.machines.process import Machine, opened
from qfunc.lowering.onnxruntime.session import Session
from qfunc.targets.onnxruntime.lstm_nodes import OPERATOR
from qfunc.targets.onnxruntime.optimized_model import OptimizedModel, optimized_model

_REAL = 1  # TensorProto.FLOAT


@frozen(eq=False)
class ModelWithLstms:
    """An optimised model, and the same graph with the real tensors beside its LSTM layers as outputs.

    It runs on one thread: of several, each has a part of the batch, and scales of that part.
    """

    model: OptimizedModel
    shown: Any
    reals: frozenset[str]
    units: Mapping[str, str]

    @property
    def tensors(self) -> frozenset[str]:
        """The names of the tensors of codes."""
        return self.model.tensors

    @property
    def difference(self) -> str:
        """How the graph with codes as outputs differs from the graph as deployed, or ""."""
        return self.model.difference

    def run(self, inputs: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return (the outputs of the model as deployed, real tensor or tensor of codes -> values)."""
        outputs, codes = self.model.run(inputs)
        values = dict(zip(self.shown.outputs, self.shown.run(inputs), strict=True))
        return outputs, codes | {name: values[name] for name in self.reals}


def model_with_lstms(model: bytes, machine: Machine | None = None) -> ModelWithLstms | None:
    """Load a model with DynamicQuantizeLSTM; None if it has none, or if the runtime of `machine` saves no optimised graphs."""
    import onnx

    from qfunc.files.onnx_model import read_model

    original = read_model(model)
    layers = [node for node in original.graph.node if node.op_type == OPERATOR]
    if not layers:
        return None
    plain = optimized_model(model, 1, machine)
    if not isinstance(plain, OptimizedModel):
        return None
    graph = onnx.load_from_string(plain.plain.saved)
    computed = {name for node in graph.graph.node for name in node.output}
    reals = sorted(_beside(original, layers) & computed)
    outputs = {o.name for o in graph.graph.output}
    graph.graph.output.extend(onnx.helper.make_tensor_value_info(n, _REAL, None) for n in reals if n not in outputs)
    shown = opened(machine, Session, graph.SerializeToString(), optimise=False, threads=1)
    left = {node.name for node in graph.graph.node if node.op_type == OPERATOR}
    units = {n.name.rpartition(".")[0]: "integer" if n.name in left else "gone" for n in layers}
    return ModelWithLstms(plain, shown, frozenset(reals), plain.units | units)


def _beside(model: Any, layers: Sequence[Any]) -> set[str]:
    # The inputs of layers, and their results behind the ops that drop the axis of directions and copy.
    results = {name for node in layers for name in node.output}
    for node in model.graph.node:
        if node.op_type in ("Squeeze", "Max") and node.input[0] in results:
            results.update(node.output)
    return results | {node.input[0] for node in layers}
