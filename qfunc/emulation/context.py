"""The context in which one unit is written to an emulation graph."""

from __future__ import annotations

from attrs import field, frozen
from torch import fx

from qfunc.emulation.builder import Codes, EmulationBuilder, Value
from qfunc.graph.constants import read_attr
from qfunc.ops.node import slots
from qfunc.ops.sizes import is_number
from qfunc.placement.encoding import Encoding
from qfunc.placement.partition import Partition
from qfunc.placement.unit_spec import Described
from qfunc.placement.units import Unit


@frozen(eq=False)
class UnitContext:
    """One unit with a kernel: the values of its inputs by node name, and the encoding of its output.

    `output_encoding` is None if the output stays real.
    """

    unit: Unit
    partition: Partition
    emitter: EmulationBuilder
    inputs: dict[str, Value]
    output_encoding: Encoding | None
    root: fx.Node = field(init=False)
    """The unit's op."""
    name: str = field(init=False)
    """The name of the unit's result node: the name of the float tensor."""

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "root", self.unit.group.root)
        object.__setattr__(self, "name", self.unit.group.output.name)

    def real(self, producer: fx.Node, reader: fx.Node) -> fx.Node:
        """Return an input of an op in real units; a weight or bias is the dequantized one."""
        value = self.inputs[producer.name]
        encoding = self.partition.encoding(producer, reader) if producer.op == "get_attr" else None
        if isinstance(value, Codes) or encoding is None:
            return self.emitter.real(value, producer.name)
        quantized = encoding.quantizer.module(read_attr(self.partition.network, producer).detach())
        return self.emitter.constant(quantized.detach(), str(producer.target))

    def wide(self, producer: fx.Node, reader: fx.Node) -> fx.Node:
        """Return an input of an op in real units in float64; sizes and integers as they are."""
        value = self.inputs[producer.name]
        encoding = self.partition.encoding(producer, reader) if producer.op == "get_attr" else None
        if isinstance(value, Codes) or encoding is None:
            return value.node if is_number(producer) else self.emitter.wide(value, producer.name)
        codes, (scale, zero, *_) = encoding.codes(read_attr(self.partition.network, producer)), encoding.qparams
        return self.emitter.constant((codes.double() - zero.double()) * scale.double(), str(producer.target))

    def described(self) -> Described:
        """Return the unit as its arithmetic sees it, with the edge of each operand."""
        assert self.unit.kernel is not None
        return self.partition.described(self.unit.group, self.unit.kernel, self.output_encoding, self.channels_last())

    def channels_last(self) -> bool:
        """Return True if the runtime stores an operand as its convolutions write it."""
        return any(n.name in self.emitter.channels_last for node in self.unit.group.nodes for _, n in slots(node))
