"""One node of an ONNX graph as its reader sees it: inputs as values, attributes with their defaults, and calls of torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import onnx
import torch
from attrs import define
from onnx import helper, numpy_helper
from torch import Tensor, fx

from qfunc.errors import CaptureError
from qfunc.reading.network import Network
from qfunc.reading.trial_sizes import Dims
from qfunc.reading.values import Constant, Number, Numbers, Value, numbers_of

FLOAT_TYPES = (torch.float16, torch.bfloat16, torch.float64)
"""Types that become float32."""


@define(eq=False, slots=False)
class NodeReader:
    """A node, its inputs, and the network that it becomes a part of.

    Args:
        network: The network.
        proto: The node.
        version: The version of the operator set of its domain.
        inputs: Its inputs; None for those that are left out.
        file: The name of the file in errors.
    """

    network: Network
    proto: onnx.NodeProto
    version: int
    inputs: tuple[Value | None, ...]
    file: str

    @property
    def op(self) -> str:
        """The operator."""
        return self.proto.op_type

    @property
    def outputs(self) -> list[str]:
        """The names of its results; "" for those that nothing reads."""
        return list(self.proto.output)

    @cached_property
    def _attributes(self) -> dict[str, Any]:
        return {a.name: helper.get_attribute_value(a) for a in self.proto.attribute}

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute; text for bytes, a tensor for a `TensorProto`."""
        value = self._attributes.get(name, default)
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        if isinstance(value, onnx.TensorProto):
            return tensor_of(value)
        return list(value) if isinstance(value, list) and value and isinstance(value[0], int | float) else value

    @property
    def attribute_names(self) -> set[str]:
        """The names of the attributes that the node has."""
        return set(self._attributes)

    def has(self, index: int) -> bool:
        """Return True if an input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Value:
        """Return an input.

        Raises:
            CaptureError: it is left out.
        """
        found = self.inputs[index] if index < len(self.inputs) else None
        if found is None:
            raise self.refuse(f"{len(self.inputs)} inputs", f"an input at place {index}", "Check the file with onnx.checker.")
        return found

    def x(self, index: int = 0) -> Constant | fx.Node:
        """Return an input as a tensor."""
        return self.network.tensor(self.value(index), f"{self.path}.input_{index}")

    def weight(self, index: int) -> Constant | fx.Node | None:
        """Return an input that trains if it is a constant; None if it is left out."""
        if not self.has(index):
            return None
        found = self.x(index)
        return Constant(found.tensor, found.name, True) if isinstance(found, Constant) else found

    def tensor(self, index: int) -> Tensor | None:
        """Return the value of a constant input, else None."""
        found = self.inputs[index] if index < len(self.inputs) else None
        return found.tensor if isinstance(found, Constant) else None

    def known(self, index: int, what: str) -> Tensor:
        """Return the value of an input that must be constant.

        Raises:
            CaptureError: it is computed.
        """
        found = self.tensor(index)
        if found is None:
            raise self.refuse(f"{what} that are computed", "constants", self.network.how_to_fix_sizes)
        return found

    def operand(self, index: int) -> Any:
        """Return an input of an op of two operands: a number for a constant of one entry, else a tensor."""
        found, other = self.x(index), self.inputs[1 - index]
        if not isinstance(found, Constant) or found.tensor.numel() != 1 or isinstance(other, Constant):
            return found
        rank, same = self.rank(1 - index), self.dtype(1 - index) == found.tensor.dtype
        beside = found.tensor.ndim == 0 or (rank is not None and found.tensor.ndim <= rank)
        return found.tensor.item() if beside and same else found

    def number(self, index: int) -> Any:
        """Return a constant of one entry as a number, else None."""
        found = self.tensor(index)
        return found.item() if found is not None and found.numel() == 1 else None

    def numbers(self, index: int, what: str) -> tuple[Number, ...]:
        """Return the entries of a vector of numbers, of which some may be computed from sizes.

        Raises:
            CaptureError: it is computed from values.
        """
        found = numbers_of(self.value(index))
        if found is None and (known := self.tensor(index)) is not None:
            found = tuple(known.reshape(-1).tolist())
        if found is None:
            do = "Leave the op out: read(..., outputs=(names of tensors before it))."
            raise self.refuse(f"{what} that are computed from values", "constants, or numbers computed from sizes", do)
        return found

    def listed(self, name: str, index: int) -> tuple[Number, ...] | None:
        """Return numbers that are an attribute in older operators and an input in newer ones; None if both are left out."""
        if name in self._attributes:
            return tuple(self._attributes[name])
        return self.numbers(index, name) if self.has(index) else None

    def axes(self, index: int = 1, name: str = "axes") -> tuple[int, ...] | None:
        """Return axes that must be known; None if they are left out.

        Raises:
            CaptureError: they are computed.
        """
        found = self.listed(name, index)
        if found is not None and not all(isinstance(a, int) for a in found):
            raise self.refuse(f"{name} that are computed", "constants", "Export the model with constant axes.")
        return None if found is None else tuple(int(a) for a in found)  # type: ignore[arg-type]

    def dims(self, index: int = 0) -> Dims | None:
        """Return the sizes of an input; None if nothing is known."""
        value = self.value(index)
        if isinstance(value, Constant):
            return tuple(value.tensor.shape)
        if isinstance(value, Numbers):
            return () if value.scalar else (len(value.entries),)
        return self.network.shape(value)

    def rank(self, index: int = 0) -> int | None:
        """Return the number of axes of an input; None if it is not known."""
        found = self.dims(index)
        return None if found is None else len(found)

    def known_rank(self, index: int = 0) -> int:
        """Return the number of axes of an input.

        Raises:
            CaptureError: it is not known.
        """
        found = self.rank(index)
        if found is None:
            raise self.refuse(
                "an input of unknown rank", "a known rank", "Save the file with onnx.shape_inference.infer_shapes."
            )
        return found

    def length(self, axis: int, index: int = 0) -> int | None:
        """Return the size of an axis of an input; None if it varies."""
        value = self.value(index)
        if isinstance(value, fx.Node):
            return self.network.length(value, axis)
        found = self.dims(index)
        size = found[axis] if found is not None else None
        return size if isinstance(size, int) else None

    def dtype(self, index: int = 0) -> torch.dtype:
        """Return the type of an input; float32 if it is not known."""
        value = self.value(index)
        if isinstance(value, Constant):
            return value.tensor.dtype
        return value.dtype if isinstance(value, Numbers) else self.network.dtypes.get(value, torch.float32)

    def sizes(self, index: int = 0) -> list[Number]:
        """Return the sizes of an input: numbers, and nodes for those that vary."""
        value = self.value(index)
        if not isinstance(value, fx.Node):
            return list(self.dims(index) or ())  # type: ignore[arg-type]
        return [self.network.size(value, axis) for axis in range(self.known_rank(index))]

    @property
    def path(self) -> str:
        """The name of the first result."""
        return next((name for name in self.proto.output if name), self.proto.name or self.op)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what a function of torch returns for values."""
        return self.network.call(self.path, function, *args, **kwargs)

    def arithmetic(self, function: Callable[..., Any], *args: Number) -> Number:
        """Return a number that is computed from numbers."""
        if not any(isinstance(a, fx.Node) for a in args):
            return function(*args)  # type: ignore[no-any-return]
        return self.network.graph.call_function(function, args)

    def refuse(self, found: str, wanted: str, do: str) -> CaptureError:
        """Return the error about this node."""
        name = self.proto.name or self.path
        return CaptureError(where=f"{self.file}: node {name!r} ({self.op})", found=found, wanted=wanted, do=do)


Reader = Callable[[NodeReader], Any]
"""Return the result of a node as a `Value`, or the results in order, None for those that nothing reads."""


def tensor_of(proto: onnx.TensorProto) -> Tensor:
    """Return the value of a tensor of a file; reals are float32."""
    if proto.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.INT64) and proto.raw_data:
        array = numpy_helper.to_array(proto)
    elif proto.data_type in (onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE):
        array = numpy_helper.to_array(proto).astype("float32")
    else:
        array = numpy_helper.to_array(proto)
    return torch.from_numpy(array.copy() if not array.flags.writeable else array)
