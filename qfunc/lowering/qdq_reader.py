"""A standard Q/DQ model as the writer of a .tflite reads it: constants, attributes, readers, shapes of one example."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from attrs import frozen
from onnx import helper, numpy_helper

from qfunc.errors import DeployError

__all__ = ["ACTIVATIONS", "Array", "QParams", "QdqModel", "copies", "dequantized"]


ACTIVATIONS = ("Relu", "Clip")


REAL = onnx.TensorProto.FLOAT


class QdqModel:
    """A model in ONNX; the first axis of its inputs varies, all others are known."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self.constants: dict[str, Array] = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
        self.made = {o: n for n in model.graph.node for o in n.output}
        self.outputs = [o.name for o in model.graph.output]
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in model.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self._two, self._three = (_inferred(model, batch) for batch in (2, 3))

    def is_real(self, name: str) -> bool:
        """Whether a tensor has real values, or codes; sizes are neither."""
        return name not in self._two or self._two[name][0] in (REAL, onnx.TensorProto.INT8)

    def kind(self, name: str) -> int:
        """ONNX's number of the type of its entries."""
        return self._two[name][0]

    def shape(self, name: str, node: str) -> tuple[int, ...]:
        """The shape of one example.

        Raises:
            DeployError: an axis other than the batch varies.
        """
        two, three = (found.get(name, (0, None))[1] for found in (self._two, self._three))
        if two is None or three is None or None in (*two, *three):
            do = "Give deploy example_inputs of one size; only the batch may vary."
            raise DeployError(where=f"op {node!r}", found="a tensor of unknown sizes", wanted="sizes that do not vary", do=do)
        return tuple(b if a == b else b - a for a, b in zip(_known(two), _known(three), strict=True))

    def varies(self, name: str) -> int | None:
        """The axis whose length is the batch's, or a multiple of it."""
        two, three = self._two[name][1] or (), self._three[name][1] or ()
        return next((i for i, (a, b) in enumerate(zip(two, three, strict=True)) if a != b), None)

    def attribute(self, node: onnx.NodeProto, name: str, default: Any = None) -> Any:
        """An attribute's value."""
        return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)

    def constant(self, node: onnx.NodeProto, index: int, default: Any = None) -> Any:
        """The array of a constant input.

        Raises:
            DeployError: it is computed.
        """
        name = node.input[index] if index < len(node.input) else ""
        if not name:
            return default
        if name not in self.constants:
            do = "Compute it once, outside the model."
            raise DeployError(where=f"op {node.name!r}", found=f"input {name!r}, computed", wanted="a constant", do=do)
        return self.constants[name]

    def only_reader(self, name: str) -> onnx.NodeProto | None:
        """The one node that reads a tensor, if there is one and the tensor is no output."""
        found = self.readers.get(name, [])
        return found[0] if len(found) == 1 and name not in self.outputs else None

    def result(self, name: str) -> tuple[list[onnx.NodeProto], onnx.NodeProto | None]:
        """(activations, the QuantizeLinear behind them) that alone read what an op makes."""
        steps: list[onnx.NodeProto] = []
        while True:
            node = self.only_reader(name)
            if node is None:
                return steps, None
            if node.op_type == "QuantizeLinear":
                return steps, node
            if node.op_type not in ACTIVATIONS and not copies(node):
                return steps, None
            steps.append(node)
            name = node.output[0]

    def bounds(self, node: onnx.NodeProto) -> tuple[float | None, float | None]:
        """Between which values an activation or copy keeps its input."""
        if node.op_type == "Relu":
            return 0.0, None
        if node.op_type != "Clip":
            return None, None
        low, high = (self.constant(node, i) for i in (1, 2))
        return None if low is None else float(low), None if high is None else float(high)


def copies(node: onnx.NodeProto) -> bool:
    """Whether a node computes nothing."""
    return node.op_type == "Identity" or (node.op_type == "Max" and len(node.input) == 1)


def _inferred(model: onnx.ModelProto, batch: int) -> dict[str, tuple[int, tuple[int | None, ...] | None]]:
    # name -> (element type, shape) where the batch has that size.
    sized = onnx.ModelProto()
    sized.CopyFrom(model)
    for info in sized.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.HasField("dim_param") and axis == 0:
                dim.dim_value = batch
    for info in sized.graph.output:
        info.type.tensor_type.ClearField("shape")
    graph = onnx.shape_inference.infer_shapes(sized, data_prop=True).graph
    found: dict[str, tuple[int, tuple[int | None, ...] | None]] = {}
    for info in (*graph.input, *graph.value_info, *graph.output):
        t = info.type.tensor_type
        dims = tuple(d.dim_value if d.HasField("dim_value") else None for d in t.shape.dim) if t.HasField("shape") else None
        found[info.name] = (t.elem_type, dims)
    for initializer in graph.initializer:
        found[initializer.name] = (initializer.data_type, tuple(initializer.dims))
    return found


def _known(sizes: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(n for n in sizes if n is not None)


Array = np.ndarray[Any, Any]


@frozen
class QParams:
    """real = (code - zero point) * scale, one for the tensor or one for each slice along `axis`."""

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int = 0


def dequantized(codes: Array, qparams: QParams) -> Array:
    """The real values of codes."""
    shape = [-1 if i == qparams.axis and len(qparams.scale) > 1 else 1 for i in range(codes.ndim)]
    scale = np.array(qparams.scale, np.float32).reshape(shape)
    zero = np.array(qparams.zero_point, np.int64).reshape(shape)
    return np.asarray((codes.astype(np.int64) - zero).astype(np.float32) * scale, np.float32)
