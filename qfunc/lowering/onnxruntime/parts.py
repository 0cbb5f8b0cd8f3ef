"""A model that ONNX Runtime runs as written, a part of its nodes at a time.

ONNX Runtime loads a model in a time that grows with the square of its nodes, and holds all weights, which an unoptimised
model dequantizes as it runs.  A part is loaded when its turn comes, with its own constants, and then dropped: the time is
linear in the nodes, and the memory is that of one part.  The nodes and the values between them are those of the whole model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from attrs import frozen
from onnx import helper

from qfunc.errors import DeployError

MOST_NODES, MOST_BYTES = 200, 1 << 23
"""Of a part: its nodes, a call of a function counted as the function's, and the bytes of its constants."""


@frozen
class _Part:
    nodes: tuple[Any, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: tuple[str, ...]


class PartwiseModel:
    """A model whose nodes are in the order of their data; `inputs` and `outputs` are the names of its own.

    Raises:
        DeployError: a node reads what no node before it computes, or two nodes compute one tensor.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model, graph = model, model.graph
        self.inputs, self.outputs = ([v.name for v in values] for values in (graph.input, graph.output))
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._declared = {v.name: v for v in (*graph.input, *graph.output)}
        self._sizes = {(f.domain, f.name): len(f.node) for f in model.functions}
        _require_order(graph, {*self.inputs, *self._constants})

    def run(self, batch: Sequence[Any], names: Collection[str] = ()) -> dict[str, np.ndarray[Any, Any]]:
        """Return the outputs for one batch, and the tensors of these names; each part is checked by ONNX, too."""
        wanted = {*self.outputs, *names}
        values = {n: ort.OrtValue.ortvalue_from_numpy(np.asarray(v)) for n, v in zip(self.inputs, batch, strict=True)}
        parts = list(self._parts(wanted))
        last = {name: i for i, part in enumerate(parts) for name in part.inputs}
        for i, part in enumerate(parts):
            self._compute(part, values)
            for name in part.inputs:
                if last[name] == i and name not in wanted:
                    values.pop(name)
        return {name: values[name].numpy() for name in dict.fromkeys((*self.outputs, *names))}

    def _parts(self, wanted: Collection[str]) -> Iterator[_Part]:
        nodes = list(self.model.graph.node)
        readers = {name: i for i, node in enumerate(nodes) for name in _read(node)}
        pending: list[Any] = []
        held, cost, size = set[str](), 0, 0
        for i, node in enumerate(nodes):
            pending.append(node)
            stored = {name for name in _read(node) if name in self._constants} - held
            held |= stored
            cost += self._sizes.get((node.domain, node.op_type), 1)
            size += sum(len(self._constants[name].raw_data) for name in stored)
            if cost < MOST_NODES and size < MOST_BYTES and i + 1 < len(nodes):
                continue
            made = {name for each in pending for name in each.output if name}
            read = list(dict.fromkeys(name for each in pending for name in _read(each)))
            inputs = (name for name in read if name not in made and name not in self._constants)
            outputs = (n for each in pending for n in each.output if n in wanted or readers.get(n, -1) > i)
            yield _Part(tuple(pending), tuple(inputs), tuple(outputs), tuple(n for n in read if n in self._constants))
            pending, held, cost, size = [], set(), 0, 0

    def _compute(self, part: _Part, values: dict[str, Any]) -> None:
        # Add the outputs of a part to the values.
        if not part.outputs:
            return
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        session = ort.InferenceSession(self._file(part, values), options, providers=["CPUExecutionProvider"])
        feeds = {name: values[name] for name in part.inputs}
        values.update(zip(part.outputs, session.run_with_ort_values(list(part.outputs), feeds), strict=True))

    def _file(self, part: _Part, values: dict[str, Any]) -> bytes:
        made = onnx.ModelProto(ir_version=self.model.ir_version)
        made.opset_import.extend(self.model.opset_import)
        made.functions.extend(self.model.functions)
        made.graph.name = self.model.graph.name
        made.graph.node.extend(part.nodes)
        made.graph.initializer.extend(self._constants[name] for name in part.constants)
        made.graph.input.extend(self._declared.get(n) or _info(n, values[n]) for n in part.inputs)
        made.graph.output.extend(self._declared[n] for n in part.outputs if n in self._declared)
        onnx.checker.check_model(made)
        # ONNX Runtime infers the types of the others.
        made.graph.output.extend(onnx.ValueInfoProto(name=n) for n in part.outputs if n not in self._declared)
        content: bytes = made.SerializeToString()
        return content


def _info(name: str, value: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, value.element_type(), list(value.shape()))


def _read(node: onnx.NodeProto) -> Iterator[str]:
    # The tensors that a node reads, those that its graphs read from around them included.
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            own = {o for inner in attribute.g.node for o in inner.output}
            own |= {v.name for v in (*attribute.g.input, *attribute.g.initializer)}
            yield from (n for inner in attribute.g.node for n in _read(inner) if n not in own)


def _require_order(graph: onnx.GraphProto, known: set[str]) -> None:
    for node in graph.node:
        unknown = next((name for name in _read(node) if name not in known), None)
        twice = next((name for name in node.output if name in known), None)
        if unknown is not None or twice is not None:
            found = f"the tensor {unknown!r}, which no node before computes" if twice is None else f"two tensors {twice!r}"
            do = "Report this model: its ops are written wrongly."
            raise DeployError(where=f"op {node.name!r}", found=found, wanted="each tensor computed once, then read", do=do)
        known.update(name for name in node.output if name)
