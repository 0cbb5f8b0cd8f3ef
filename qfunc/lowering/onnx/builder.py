"""A builder of ONNX graphs: unique names, initializers, nodes, Q/DQ pairs."""

from __future__ import annotations

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

_SINCE = {"HardSwish": 14, "LayerNormalization": 17, "Mish": 18, "Gelu": 20, "GroupNormalization": 21, "Trilu": 14}
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


class GraphBuilder:
    """A graph under construction for one opset, 13 or later; tensors are referred to by name."""

    def __init__(self, opset: int = OPSET) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.taken = UniqueNames()
        self.functions: dict[tuple[str, str], onnx.FunctionProto] = {}
        self.axes: dict[Any, tuple[str, int, str]] = {}  # the sizes in the runs -> an input, its axis, the axis's name
        self.sizes: dict[Any, str] = {}

    def fresh(self, name: str) -> str:
        """Return the name, or the name with a number if it is taken."""
        return self.taken.fresh(name)

    def node(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a node, named after its output, and return the output's name.

        Raises:
            DeployError: the opset has no such operator.
        """
        output = self.fresh(output)
        if (since := _SINCE.get(op, 0)) > self.opset and "domain" not in attributes:
            found, do = f"{op} in opset {self.opset}", f"Deploy by edit.deploy(QdqLowering(opset={since}))."
            raise DeployError(where=f"op {output!r}", found=found, wanted=f"opset {since} or later", do=do)
        kept = {k: v for k, v in attributes.items() if v is not None}
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=output, **kept))
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

    def size(self, tried: Any) -> str | None:
        """Return a vector with the size of an input's axis in a call; None if no input has such an axis."""
        if tried not in self.axes:
            return None
        if tried not in self.sizes:
            source, axis, label = self.axes[tried]
            shape = self.node("Shape", [source], f"{label}.shape")
            self.sizes[tried] = self.node("Gather", [shape, self.integers(axis, name=f"{label}.axis")], f"{label}.size")
        return self.sizes[tried]

    def model(self, name: str) -> onnx.ModelProto:
        """Return the finished model."""
        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs, list(self.initializers.values()))
        domains = {"": self.opset, **{domain: 1 for domain, _ in self.functions}}
        imports = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
        functions = list(self.functions.values())
        oldest = helper.find_min_ir_version_for(imports[:1])
        ir_version = max(oldest, 8) if functions else oldest  # IR 8 introduced functions
        made = helper.make_model(graph, opset_imports=imports, ir_version=ir_version, functions=functions)
        made.producer_name = "qfunc"
        return made


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
