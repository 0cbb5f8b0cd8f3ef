"""The reader of a Q/DQ model: producers, readers, constants, qparams and the shapes of one example."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qfunc.errors import DeployError
from qfunc.lowering.qdq.qparams import Array, QParams, float_numbers
from qfunc.lowering.qdq.sizes import SizedType, sized_types

ACTIVATIONS = ("Relu", "Clip")
REAL = onnx.TensorProto.FLOAT
_CODES = (onnx.TensorProto.INT8, onnx.TensorProto.INT16)


class QdqModel:
    """An index of an ONNX model as it is when the index is created; shapes are inferred when they are first read.

    Args:
        model: The model.
        known: The values of tensors for batches of 2 and of 3, whose shapes inference may not find.
    """

    def __init__(self, model: onnx.ModelProto, known: tuple[Mapping[str, Array], Mapping[str, Array]] = ({}, {})) -> None:
        self.known = known
        self.model, self.graph = model, model.graph
        self.initializers: dict[str, onnx.TensorProto] = {i.name: i for i in model.graph.initializer}
        self.producers: dict[str, onnx.NodeProto] = {o: n for n in model.graph.node for o in n.output}
        self.outputs = [o.name for o in model.graph.output]
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in model.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    @cached_property
    def constants(self) -> dict[str, Array]:
        """The initializers as arrays, by name."""
        return {name: numpy_helper.to_array(i) for name, i in self.initializers.items()}

    @cached_property
    def _types(self) -> tuple[dict[str, SizedType], dict[str, SizedType]]:
        # For batches of 2 and of 3: an axis that differs is the batch's.
        return sized_types(self.model, 2, self.known[0]), sized_types(self.model, 3, self.known[1])

    def is_real(self, name: str) -> bool:
        """Return True if a tensor has real values or codes; sizes have neither."""
        two, _ = self._types
        return name not in two or two[name][0] in (REAL, *_CODES)

    def kind(self, name: str) -> int:
        """Return ONNX's number of a tensor's element type."""
        return self._types[0][name][0]

    def element_type(self, name: str) -> str:
        """Return the name of a tensor's element type, as numpy has it."""
        return str(helper.tensor_dtype_to_np_dtype(self.kind(name)))

    def has_sizes(self, name: str) -> bool:
        """Return True if all sizes of a tensor are known, apart from the batch size."""
        return all(
            sizes is not None and None not in sizes for sizes in (found.get(name, (0, None))[1] for found in self._types)
        )

    def shape(self, name: str, node: str) -> tuple[int, ...]:
        """Return the shape of one example.

        Raises:
            DeployError: an axis other than the batch varies.
        """
        two, three = (found.get(name, (0, None))[1] for found in self._types)
        if two is None or three is None or None in (*two, *three):
            do = "Give deploy example_inputs of one size; only the batch may vary."
            raise DeployError(where=f"op {node!r}", found="a tensor of unknown sizes", wanted="sizes that do not vary", do=do)
        return tuple(b if a == b else b - a for a, b in zip(_known(two), _known(three), strict=True))

    def varies(self, name: str) -> int | None:
        """Return the axis whose length is the batch size or a multiple of it, or None."""
        two, three = (found[name][1] or () for found in self._types)
        return next((i for i, (a, b) in enumerate(zip(two, three, strict=True)) if a != b), None)

    def varying(self, name: str) -> tuple[int, ...] | None:
        """Return all axes whose lengths depend on the batch size; None if inference does not find the sizes."""
        two, three = (found.get(name, (0, None))[1] for found in self._types)
        if two is None or three is None or len(two) != len(three):
            return None
        return tuple(i for i, (a, b) in enumerate(zip(two, three, strict=True)) if a != b)

    def attribute(self, node: onnx.NodeProto, name: str, default: Any = None) -> Any:
        """Return an attribute's value, or the default."""
        return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)

    def constant(self, node: onnx.NodeProto, index: int, default: Any = None) -> Any:
        """Return the array of a constant input, or the default if there is no such input.

        Raises:
            DeployError: the input is computed.
        """
        name = node.input[index] if index < len(node.input) else ""
        if not name:
            return default
        if name not in self.constants:
            do = "Compute it once, outside the model."
            raise DeployError(where=f"op {node.name!r}", found=f"input {name!r}, computed", wanted="a constant", do=do)
        return self.constants[name]

    def qparams(self, node: onnx.NodeProto) -> QParams:
        """Return the qparams of a QuantizeLinear or DequantizeLinear."""
        scale, zero = (self.constant(node, i) for i in (1, 2))
        axis = int(self.attribute(node, "axis", 1)) if scale.ndim else 0
        block = self.attribute(node, "block_size") or None
        if block:
            return QParams(float_numbers(scale), array("h", zero.astype(np.int16).tobytes()), axis, block)
        return QParams(tuple(float(s) for s in scale.ravel()), tuple(int(z) for z in zero.ravel()), axis)

    def dequantizer(self, name: str) -> onnx.NodeProto | None:
        """Return the DequantizeLinear, or DequantizeBlocks of `qdq_nodes`, that produces a tensor, or None."""
        node = self.producers.get(name)
        return node if node is not None and node.op_type in ("DequantizeLinear", "DequantizeBlocks") else None

    def uses(self, name: str) -> int:
        """Return the number of inputs of nodes and outputs of the model that read a tensor."""
        return len(self.readers.get(name, ())) + self.outputs.count(name)

    def only_reader(self, name: str) -> onnx.NodeProto | None:
        """Return the only node that reads a tensor; None if there are several or the tensor is an output."""
        found = self.readers.get(name, [])
        return found[0] if len(found) == 1 and name not in self.outputs else None

    def result(self, name: str) -> tuple[list[onnx.NodeProto], onnx.NodeProto | None]:
        """Return the activations and copies that follow an op, each the only reader, and their QuantizeLinear, if any."""
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
        """Return the clamp bounds of an activation; None where there is no bound."""
        if node.op_type == "Relu":
            return 0.0, None
        if node.op_type != "Clip":
            return None, None
        low, high = (self.constant(node, i) for i in (1, 2))
        return None if low is None else float(low), None if high is None else float(high)


def is_copy(node: onnx.NodeProto) -> bool:
    """Return True for Max of one tensor: a copy that keeps ONNX Runtime from quantizing a float tensor."""
    return bool(node.op_type == "Max" and len(node.input) == 1)


def copies(node: onnx.NodeProto) -> bool:
    """Return True if a node computes nothing: Identity, or Max of one tensor."""
    return node.op_type == "Identity" or is_copy(node)


def walk(
    source: QdqModel,
    done: Collection[str],
    *,
    dequantize: Callable[[onnx.NodeProto], None],
    quantize: Callable[[onnx.NodeProto], None],
    write: Callable[[onnx.NodeProto], None],
    passes: Callable[[onnx.NodeProto], bool] = copies,
) -> None:
    """Visit the nodes of a Q/DQ model in order, each by the function of its type.

    Args:
        done: Outputs of the nodes that are not visited, because an op before them does their work; may grow on the way.
        dequantize: Visits DequantizeLinear, and each node for which `passes` returns True.
        quantize: Visits QuantizeLinear.
        write: Visits all other nodes.
    """
    for node in source.graph.node:
        if node.output[0] in done or not source.is_real(node.output[0]):
            continue
        if node.op_type == "DequantizeLinear" or passes(node):
            dequantize(node)
        elif node.op_type == "QuantizeLinear":
            quantize(node)
        else:
            write(node)


def _known(sizes: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(n for n in sizes if n is not None)
