"""What a lowering gets: the Q/DQ model of a network, its quantized tensors, and its units."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import field, frozen

from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.specs import Kernel


@frozen
class ProgramUnit:
    """One unit of the partition, and its nodes in the ONNX model.

    Attributes:
        path: The user's path of the op.
        kind: The kind of the op.
        integer: True if the kernel reads or writes codes.
        kernel: The kernel that runs the unit; None if the target describes no kernel for it.
        codes: True if the unit computes codes from codes.
        host: The reason why the host of the chip runs the unit, or "".
        nodes: The names of its nodes in the ONNX model, in the order of the model.
    """

    path: str
    kind: str
    integer: bool
    kernel: Kernel | None
    codes: bool = False
    host: str = ""
    nodes: tuple[str, ...] = ()


def _tensors(given: Iterable[QuantizedTensor]) -> tuple[QuantizedTensor, ...]:
    return tuple(given)


def _units(given: Iterable[ProgramUnit]) -> tuple[ProgramUnit, ...]:
    return tuple(given)


@frozen(eq=False)
class Program:
    """A partitioned network as standard ONNX.

    Attributes:
        model: An `onnx.ModelProto` with QuantizeLinear and DequantizeLinear, to be left as it is.
        tensors: The quantized tensors, and their places in the model.
        units: The units, in the order of the network.
        inputs, outputs: The names that the files give to the inputs and outputs, "" for the name of the tensor; () if the
            tensors of the model have the names.

    >>> Program(None).units
    ()
    """

    model: Any
    tensors: tuple[QuantizedTensor, ...] = field(default=(), converter=_tensors)
    units: tuple[ProgramUnit, ...] = field(default=(), converter=_units)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def by_node(program: Program) -> dict[str, ProgramUnit]:
    """Return the units by the names of their nodes."""
    return {name: unit for unit in program.units for name in unit.nodes}
