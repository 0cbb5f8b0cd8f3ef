"""The reader of a Q/DQ model: producers, readers, constants, qparams and the shapes of one example."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import torch
from attrs import frozen
from onnx import helper, numpy_helper

from qfunc.errors import DeployError
from qfunc.lowering.windows import set_floor_mode
from qfunc.numerics.affine import implies_clamp

__all__ = ["ACTIVATIONS", "REAL", "Array", "QParams", "QdqModel", "copies", "dequantized", "float_numbers", "is_copy", "walk"]

ACTIVATIONS = ("Relu", "Clip")
REAL = onnx.TensorProto.FLOAT
_MOST_AXES = 16
_MOST_ENTRIES = 1024
_CODES = (onnx.TensorProto.INT8, onnx.TensorProto.INT16)
Array = np.ndarray[Any, Any]


@frozen
class QParams:
    """real = (code - zero point) * scale, one for the tensor or one for each slice along `axis`.

    With `block`, one for each run of so many entries along `axis`, in the order of the tensor; these may be millions, and are
    arrays of numbers.
    """

    scale: Sequence[float]
    zero_point: Sequence[int]
    axis: int = 0
    block: int | None = None

    def imply(self, bounds: tuple[float | None, float | None], ends: tuple[int, int]) -> bool:
        """Return True if codes that saturate at `ends` do the work of a clamp to `bounds`.

        >>> QParams((0.1,), (-128,)).imply((0.0, None), (-128, 127))
        True
        """
        return implies_clamp(*bounds, torch.tensor(self.scale), torch.tensor(self.zero_point), ends)


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
    def _types(self) -> tuple[dict[str, _Type], dict[str, _Type]]:
        # For batches of 2 and of 3: an axis that differs is the batch's.
        return _inferred(self.model, 2, self.known[0]), _inferred(self.model, 3, self.known[1])

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


def float_numbers(values: Array) -> Sequence[float]:
    """Return the entries of an array as numbers of float32, in 4 bytes each.

    >>> float_numbers(np.array([[0.5, 2.0]]))
    array('f', [0.5, 2.0])
    """
    return array("f", values.astype(np.float32).tobytes())


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


def dequantized(codes: Array, qparams: QParams) -> Array:
    """Return the real values of codes, in float32."""
    if qparams.block is not None:
        shape = [n // qparams.block if i == qparams.axis % codes.ndim else n for i, n in enumerate(codes.shape)]
        held = (np.array(qparams.scale, np.float32), np.array(qparams.zero_point, np.float32))
        scale, zero = (each.reshape(shape).repeat(qparams.block, qparams.axis) for each in held)
        return np.asarray((codes.astype(np.float32) - zero) * scale, np.float32)
    shape = [-1 if i == qparams.axis % codes.ndim and len(qparams.scale) > 1 else 1 for i in range(codes.ndim)]
    scale = np.array(qparams.scale, np.float32).reshape(shape)
    zero = np.array(qparams.zero_point, np.int64).reshape(shape)
    return np.asarray((codes.astype(np.int64) - zero).astype(np.float32) * scale, np.float32)


_Type = tuple[int, tuple[int | None, ...] | None]
"""An element type and a shape, None where unknown."""


def _inferred(model: onnx.ModelProto, batch: int, known: Mapping[str, Array]) -> dict[str, _Type]:
    sized = _without_weights(model)
    for info in sized.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.HasField("dim_param") and axis == 0:
                dim.dim_value = batch
    for info in sized.graph.output:
        info.type.tensor_type.ClearField("shape")
    for node in sized.graph.node:
        if node.op_type == "GroupNormalization":  # onnx 1.23 infers no shape for it
            node.op_type = "Identity"
            del node.attribute[:], node.input[1:]
    _set_sizes(sized.graph, known)
    for name, value in known.items():
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        sized.graph.value_info.append(helper.make_tensor_value_info(name, kind, value.shape))
    set_floor_mode(sized)
    graph = onnx.shape_inference.infer_shapes(sized, data_prop=True).graph
    found: dict[str, _Type] = {}
    for info in (*graph.input, *graph.value_info, *graph.output):
        t = info.type.tensor_type
        dims = tuple(d.dim_value if d.HasField("dim_value") else None for d in t.shape.dim) if t.HasField("shape") else None
        found[info.name] = (t.elem_type, dims)
    for initializer in graph.initializer:
        found[initializer.name] = (initializer.data_type, tuple(initializer.dims))
    return found


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    # A copy whose large constants are values without content: shape inference reads small ones only, and copies all.
    copy, graph = onnx.ModelProto(), model.graph
    for field, value in model.ListFields():
        if field.name == "graph":
            continue
        if isinstance(value, str | bytes | int):
            setattr(copy, field.name, value)
        else:
            getattr(copy, field.name).extend(value)
    copy.graph.name = graph.name
    for name in ("node", "input", "output", "value_info"):
        getattr(copy.graph, name).extend(getattr(graph, name))
    for held in graph.initializer:
        if math.prod(held.dims) <= _MOST_ENTRIES:
            copy.graph.initializer.append(held)
        elif held.name not in {i.name for i in graph.input}:
            copy.graph.input.append(helper.make_tensor_value_info(held.name, held.data_type, held.dims))
    return copy


def _set_sizes(graph: onnx.GraphProto, known: Mapping[str, Array]) -> None:
    # Make vectors of sizes constants, from which inference has the shapes of a Tile or an Expand.
    sizes = {name for name, value in known.items() if value.dtype == np.int64 and value.ndim == 1 and len(value) <= _MOST_AXES}
    kept = [node for node in graph.node if not sizes.issuperset(node.output)]
    if len(kept) < len(graph.node):
        computed = [o for node in graph.node for o in node.output if sizes.issuperset(node.output)]
        graph.initializer.extend(numpy_helper.from_array(known[name], name) for name in computed)
        del graph.node[:]
        graph.node.extend(kept)


def _known(sizes: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(n for n in sizes if n is not None)
