"""A builder of ONNX graphs: unique names, initializers, nodes, Q/DQ pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from qfunc.errors import DeployError
from qfunc.graph.constants import UniqueNames
from qfunc.lowering.onnx.opset import OPSET
from qfunc.lowering.onnx.shape_inference import Shape
from qfunc.specs import Int

_SINCE = {
    "HardSwish": 14, "LayerNormalization": 17, "Mish": 18, "Gelu": 20, "GroupNormalization": 21, "Trilu": 14,
    "GridSample": 16,
}  # fmt: skip
"""The opset that introduced an operator in its present form, if later than 13."""


_STORED = {
    (4, True): TensorProto.INT4, (4, False): TensorProto.UINT4, (8, True): TensorProto.INT8, (8, False): TensorProto.UINT8,
    (16, True): TensorProto.INT16, (16, False): TensorProto.UINT16, (32, True): TensorProto.INT32,
    (64, True): TensorProto.INT64,
}  # fmt: skip


_ELEMENT = {
    torch.float32: TensorProto.FLOAT, torch.float64: TensorProto.DOUBLE, torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16, torch.int64: TensorProto.INT64, torch.int32: TensorProto.INT32,
    torch.bool: TensorProto.BOOL, torch.uint8: TensorProto.UINT8, torch.int8: TensorProto.INT8,
}  # fmt: skip


_CODES = {"int8": torch.int8, "uint8": torch.uint8, "int16": torch.int16}
"""The types of codes that torch converts floats to by itself."""


class GraphBuilder:
    """A graph under construction for one opset, 13 or later; tensors are referred to by name.

    No tensor gets a name in `reserved` before `free` was called for it.
    """

    def __init__(self, opset: int = OPSET, reserved: set[str] | frozenset[str] = frozenset()) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.taken, self.reserved = UniqueNames(reserved), set(reserved)
        self.functions: dict[tuple[str, str], onnx.FunctionProto] = {}
        self.axes: dict[Any, tuple[str, int, str]] = {}  # the sizes in the runs -> an input, its axis, the axis's name
        self.inner_axes: dict[Any, tuple[str, int]] = {}  # the sizes in the runs -> a tensor that is written, its axis
        self.sizes: dict[Any, str] = {}
        self.shapes: dict[str, str] = {}  # a tensor -> its shape

    def fresh(self, name: str) -> str:
        """Return the name, or the name with a number if it is taken."""
        return self.taken.fresh(name)

    def free(self, name: str) -> str:
        """Let the next tensor have a reserved name, and return the name."""
        if name in self.reserved:
            self.reserved.discard(name)
            self.taken.discard(name)
        return name

    def node(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a node, named after its output, and return the output's name.

        Raises:
            DeployError: the opset has no such operator.
        """
        output = self.fresh(output)
        if (since := _SINCE.get(op, 0)) > self.opset and "domain" not in attributes:
            if op in EARLIER:
                return EARLIER[op](self, inputs, output, attributes)
            found, do = f"{op} in opset {self.opset}", f"Deploy by edit.deploy(QdqLowering(opset={since}))."
            raise DeployError(where=f"op {output!r}", found=found, wanted=f"opset {since} or later", do=do)
        kept = {k: v for k, v in attributes.items() if v is not None}
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=output, **kept))
        return output

    def named(self, op: str, inputs: Sequence[str], output: str) -> str:
        """Add a node with this very name, which is taken already, and return the name."""
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=output))
        return output

    def many(self, op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> list[str]:
        """Add a node with several outputs, and return their names."""
        names = [self.fresh(o) for o in outputs]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=names[0], **attributes))
        return names

    def constant(self, value: Tensor | np.ndarray[Any, Any], name: str) -> str:
        """Add an initializer and return its name; equal content under one name is stored once."""
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        proto = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        if self.initializers.get(name) == proto:
            return name
        proto.name = self.fresh(name)
        self.initializers[proto.name] = proto
        return proto.name

    def integers(self, *values: int, name: str) -> str:
        """Add a constant int64 vector (shapes, axes, pads) and return its name."""
        return self.constant(np.array(values, dtype=np.int64), name)

    def number(self, value: float, name: str) -> str:
        """Add a constant float32 scalar and return its name."""
        return self.constant(np.array(value, dtype=np.float32), name)

    def stored(self, codes: Tensor, fmt: Int, name: str) -> str:
        """Add integer codes as an initializer of their storage type, and return its name."""
        dtype = helper.tensor_dtype_to_np_dtype(storage(fmt, name))
        narrow = _CODES.get(dtype.name)
        if narrow is not None:  # without copies of 8 bytes a code
            return self.constant(codes.detach().cpu().to(narrow), name)
        return self.constant(codes.detach().cpu().double().numpy().astype(np.int64).astype(dtype), name)

    def call(self, function: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a call of a function that the model defines, given in ONNX's text form, and return the output's name.

        If the function imports a later opset than the model, the model's opset is used.
        """
        parsed = onnx.parser.parse_function(function)
        for used in parsed.opset_import:
            used.version = min(used.version, self.opset) if used.domain == "" else used.version
        self.functions[parsed.domain, parsed.name] = parsed
        return self.node(parsed.name, inputs, output, domain=parsed.domain, **attributes)

    def declare(self, name: str, shape: Shape, *, output: bool = False) -> None:
        """Declare an input or output of the model; axes that vary have names, the first of them is the batch."""
        dims: list[int | str] = []
        for axis, (size, tried) in enumerate(zip(shape.dims, shape.tried or shape.dims, strict=True)):
            label = "batch" if output and len(self.axes) < 2 else f"{name}_{axis}"
            if size is None and not output:
                self.axes.setdefault(tried, (name, axis, label if axis else "batch"))
            dims.append(self.axes.get(tried, ("", 0, label))[2] if size is None else size)
        info = helper.make_tensor_value_info(name, _ELEMENT[shape.dtype], dims)
        (self.outputs if output else self.inputs).append(info)

    def note(self, name: str, shape: Shape) -> None:
        """Let `size` read the axes of a tensor that vary."""
        for axis, (size, tried) in enumerate(zip(shape.dims, shape.tried, strict=False)):
            if size is None:
                self.inner_axes.setdefault(tried, (name, axis))

    def size(self, tried: Any) -> str | None:
        """Return a vector with the size of an axis of an input in a call; None if no input has such an axis."""
        return self._size(tried, *self.axes[tried]) if tried in self.axes else None

    def inner_size(self, tried: Any) -> str | None:
        """Return a vector with the size of an axis of a noted tensor in a call; None if none has such an axis."""
        found = self.inner_axes.get(tried)
        return None if found is None else self._size(tried, *found, f"{found[0]}.{found[1]}")

    def _size(self, tried: Any, source: str, axis: int, label: str) -> str:
        if tried not in self.sizes:
            shape = self.shapes.get(source) or self.node("Shape", [source], f"{label}.shape")
            self.shapes[source] = shape
            self.sizes[tried] = self.node("Gather", [shape, self.integers(axis, name=f"{label}.axis")], f"{label}.size")
        return self.sizes[tried]

    def model(self, name: str) -> onnx.ModelProto:
        """Return the finished model, and hand over the constants to it: the builder has none from then on."""
        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs)
        domains = {"": self.opset, **{domain: 1 for domain, _ in self.functions}}
        imports = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
        functions = list(self.functions.values())
        oldest = helper.find_min_ir_version_for(imports[:1])
        ir_version = max(oldest, 8) if functions else oldest  # IR 8 introduced functions
        made = helper.make_model(graph, opset_imports=imports, ir_version=ir_version, functions=functions)
        made.producer_name = "qfunc"
        for stored in list(self.initializers):  # last, because `make_model` copies the graph
            made.graph.initializer.append(self.initializers.pop(stored))
        return made


def _hard_swish(graph: GraphBuilder, inputs: Sequence[str], output: str, attributes: Any) -> str:
    gate = graph.node("HardSigmoid", inputs, f"{output}.gate", alpha=1 / 6, beta=0.5)
    return graph.named("Mul", [*inputs, gate], output)


def _mish(graph: GraphBuilder, inputs: Sequence[str], output: str, attributes: Any) -> str:
    gate = graph.node("Tanh", [graph.node("Softplus", inputs, f"{output}.softplus")], f"{output}.gate")
    return graph.named("Mul", [*inputs, gate], output)


def _gelu(graph: GraphBuilder, inputs: Sequence[str], output: str, attributes: Any) -> str:
    (x,), half, one = inputs, graph.number(0.5, f"{output}.half"), graph.number(1.0, f"{output}.one")
    if attributes.get("approximate") == "tanh":  # sqrt(2 / pi) x (1 + 0.044715 x^2)
        square = graph.node("Mul", [x, x], f"{output}.square")
        cubic = graph.node("Mul", [square, graph.number(0.044715, f"{output}.cubic")], f"{output}.scaled")
        inner = graph.node("Mul", [x, graph.node("Add", [cubic, one], f"{output}.sum")], f"{output}.inner")
        inner = graph.node("Mul", [inner, graph.number((2 / math.pi) ** 0.5, f"{output}.root")], f"{output}.argument")
        gate = graph.node("Tanh", [inner], f"{output}.tanh")
    else:
        gate = graph.node(
            "Erf", [graph.node("Div", [x, graph.number(2**0.5, f"{output}.root")], f"{output}.argument")], f"{output}.erf"
        )
    gate = graph.node("Mul", [graph.node("Add", [gate, one], f"{output}.shifted"), half], f"{output}.gate")
    return graph.named("Mul", [x, gate], output)


def _layer_norm(graph: GraphBuilder, inputs: Sequence[str], output: str, attributes: Any) -> str:
    x, scale, *bias = inputs
    axes = list(range(attributes["axis"], 0))
    mean = {"axes": axes, "keepdims": 1}
    centred = graph.node("Sub", [x, graph.node("ReduceMean", [x], f"{output}.mean", **mean)], f"{output}.centred")
    square = graph.node("Mul", [centred, centred], f"{output}.square")
    variance = graph.node("ReduceMean", [square], f"{output}.variance", **mean)
    shifted = graph.node("Add", [variance, graph.number(attributes["epsilon"], f"{output}.epsilon")], f"{output}.shifted")
    normal = graph.node("Div", [centred, graph.node("Sqrt", [shifted], f"{output}.deviation")], f"{output}.normal")
    if not bias:
        return graph.named("Mul", [normal, scale], output)
    return graph.named("Add", [graph.node("Mul", [normal, scale], f"{output}.scaled"), *bias], output)


EARLIER = {"HardSwish": _hard_swish, "Mish": _mish, "Gelu": _gelu, "LayerNormalization": _layer_norm}
"""The operators that are written by earlier ones in opsets that lack them: ONNX's own definitions of them."""


def element_type(dtype: torch.dtype) -> int:
    """Return ONNX's number for a torch type.

    >>> element_type(torch.float32)
    1
    """
    return int(_ELEMENT[dtype])


def stored_in(fmt: Int, whole: bool = False) -> Int:
    """Return the integer type of ONNX for a format's codes; `whole` stores 4 bits in a byte.

    ONNX Runtime cannot load 4-bit integers if a Clip before them restricts the codes.

    >>> stored_in(Int(7)), stored_in(Int(3, signed=False)), stored_in(Int(4)), stored_in(Int(4), whole=True)
    (Int(8), Int(8, signed=False), Int(4), Int(8))
    """
    bits = fmt.bits if fmt.bits == 4 and not whole else next((b for b in (8, 16) if b >= fmt.bits), fmt.bits)
    return Int(bits, fmt.signed)


def storage(fmt: Int, name: str) -> int:
    """Return the ONNX element type that stores a format.

    Raises:
        DeployError: ONNX has no integer of that width.
    """
    kind = _STORED.get((fmt.bits, fmt.signed))
    if kind is None:
        do = "Use a width of 4, 8 or 16 bits."
        raise DeployError(where=f"tensor {name!r}", found=repr(fmt), wanted="an integer type of ONNX", do=do)
    return int(kind)
