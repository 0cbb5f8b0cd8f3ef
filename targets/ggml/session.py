"""A model whose products ggml computes, and all else ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from qfunc.errors import VerifyError
from qfunc.lowering.onnxruntime.session import Session
from qfunc.targets.ggml.engine import Engine
from qfunc.targets.ggml.rewrite import DOMAIN

Values = dict[str, np.ndarray[Any, Any]]
"""Tensor -> its value for one batch."""


class GgmlSession:
    """A deployed model, loaded once: ggml's products, and ONNX Runtime's sessions of the ops between two of them.

    `reals` are the names of the tensors of real values that the nodes compute.
    """

    def __init__(self, engine: Engine, weights: bytes, graph: onnx.ModelProto, threads: int) -> None:
        self.weights = engine.read(weights)
        self.inputs, self.outputs = ([v.name for v in values] for values in (graph.graph.input, graph.graph.output))
        inferred = onnx.shape_inference.infer_shapes(graph).graph
        kinds = {v.name: v.type.tensor_type.elem_type for v in (*inferred.input, *inferred.value_info, *inferred.output)}
        computed = [name for node in graph.graph.node for name in node.output]
        self.reals = tuple(name for name in computed if kinds.get(name) == onnx.TensorProto.FLOAT)
        self.steps: list[Callable[[Values], None]] = []
        pending: list[onnx.NodeProto] = []
        for node in graph.graph.node:
            if node.domain != DOMAIN:
                pending.append(node)
                continue
            self._add_part(graph, pending, kinds)
            self.steps.append(self._product(engine, node, threads))
            pending = []
        self._add_part(graph, pending, kinds)

    def run(self, inputs: Sequence[Any], names: Sequence[str] = ()) -> list[Any]:
        """Return the outputs for one batch, then the tensors of these names."""
        values: Values = {n: np.asarray(v) for n, v in zip(self.inputs, inputs, strict=True)}
        for step in self.steps:
            step(values)
        return [values[name] for name in (*self.outputs, *names)]

    def _product(self, engine: Engine, node: onnx.NodeProto, threads: int) -> Callable[[Values], None]:
        name = helper.get_attribute_value(node.attribute[0]).decode()
        if name not in self.weights:
            found, do = f"no tensor {name!r}", "Deploy the model again, and keep both files."
            raise VerifyError(where="GgmlRunner, model.gguf", found=found, wanted="the weights of the graph", do=do)
        kind, weight = self.weights[name]

        def multiply(values: Values) -> None:
            x = values[node.input[0]]
            product = engine.product(kind, weight, x.reshape(-1, x.shape[-1]), threads)
            values[node.output[0]] = product.reshape(*x.shape[:-1], len(weight))

        return multiply

    def _add_part(self, graph: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], kinds: dict[str, int]) -> None:
        # One session for the nodes between two products: all that they compute are its outputs.
        if not nodes:
            return
        constants = {i.name: i for i in graph.graph.initializer}
        made = [name for node in nodes for name in node.output if name]
        read = list(dict.fromkeys(name for node in nodes for name in node.input if name and name not in made))
        given = [name for name in read if name not in constants]
        ends, outputs = ([helper.make_tensor_value_info(n, kinds.get(n, 1), None) for n in names] for names in (given, made))
        part = helper.make_graph(nodes, "part", ends, outputs, [constants[n] for n in read if n in constants])
        model = onnx.ModelProto()
        model.CopyFrom(graph)
        model.graph.CopyFrom(part)
        session = Session(model.SerializeToString(), threads=1)

        def compute(values: Values) -> None:
            values.update(zip(made, session.run([values[n] for n in given]), strict=True))

        self.steps.append(compute)
