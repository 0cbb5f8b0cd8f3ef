"""The methods of lowerings, which write the files of toolchains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Lowering(Protocol):
    """A lowering: writes the files of a vendor's toolchain from standard Q/DQ ONNX.

    >>> from qfunc.lowering import QdqLowering
    >>> isinstance(QdqLowering(), Lowering)
    True
    """

    def lower(self, program: Any) -> Mapping[str, bytes]:
        """Return the content of each file, bytes, by its name.

        `program` is a `qfunc.lowering.Program`: `program.model`, an `onnx.ModelProto` with Q/DQ nodes, is to be left as it
        is; `program.tensors` are its `QuantizedTensor` values, `program.units` the units that the partition decided.
        """
        ...


@runtime_checkable
class FormattedLowering(Protocol):
    """A lowering whose files hold other things than Q/DQ ONNX of opset 21."""

    @property
    def format(self) -> Any:
        """The `specs.FileFormat`."""
        ...


class BuiltNetwork(Protocol):
    """The network that an engine builds around the products of the model, as nodes of the emulation."""

    @property
    def output(self) -> Any:
        """The output node of the float network."""
        ...

    def write(self, product: Any, read: Any, call: Any) -> Any:
        """Write the network, and return its outputs by the nodes of the float network that they replace.

        Args:
            product: Write a product or an embedding that reads a value: (unit, node) -> node.
            read: Return the node of a constant.
            call: Add a node that calls a function: (function, *arguments, name=) -> node.
        """
        ...


@runtime_checkable
class BuildingLowering(Protocol):
    """A lowering for an engine that builds the network itself and reads its weights only.

    The emulation is then that of the engine's network, with the weights of the file.
    """

    def network(self, partition: Any) -> BuiltNetwork:
        """Return the network that the engine builds for a partition of the model."""
        ...


@runtime_checkable
class PartwiseLowering(Protocol):
    """A lowering whose files are put together from parts of the network, as `qfunc.stream` does.

    `lower(program)` returns the files of `join([part(program)])`.
    """

    def part(self, program: Any) -> Any:
        """Return what the files have of a part of the network, a `files.part.Part`; the arguments are those of `lower`."""
        ...

    def join(self, parts: Any) -> Mapping[str, Any]:
        """Return the files of all parts: name -> an iterable of bytes."""
        ...
