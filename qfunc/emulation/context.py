"""The context in which one unit is written to an emulation graph."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from attrs import field, frozen
from torch import Tensor, fx

from qfunc.emulation.builder import Codes, EmulationBuilder, Value
from qfunc.graph.constants import read_attr
from qfunc.numerics.kernels.requantize import clamp_to_bounds
from qfunc.numerics.rounding import round_by
from qfunc.ops.node import attribute, slots
from qfunc.ops.sizes import is_number
from qfunc.placement.encoding import Encoding
from qfunc.placement.fusion import clamp_bounds
from qfunc.placement.partition import Partition
from qfunc.placement.units import Unit
from qfunc.specs import Bounds
from qfunc.specs.protocols import RoundingArithmetic


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

    @property
    def output(self) -> Encoding:
        """The encoding of the output; the output must have one."""
        assert self.output_encoding is not None
        return self.output_encoding

    def argument(self, parameter: str) -> Any:
        """Return an argument of the unit's op; numbers computed from sizes are nodes of the emulation."""
        return fx.map_arg(attribute(self.root, parameter), lambda n: self.inputs[n.name].node)

    def per_axis(self, parameter: str) -> Any:
        """Return one number for each axis of a pool, or the node that computes them from sizes."""
        value = self.argument(parameter)
        if isinstance(value, fx.Node):
            return self.emitter.call(per_axis, value, rank_of(self.root), name=f"{self.name}_{parameter}")
        return per_axis(value, rank_of(self.root))

    def codes(self, producer: fx.Node) -> Codes:
        """Return the codes of an activation input."""
        value = self.inputs[producer.name]
        assert isinstance(value, Codes)
        return value

    def range(self) -> tuple[int, int, int]:
        """Return (zero point, lowest code, highest code) of the output, within the bounds of fused activations.

        Rounding is monotonic, so that clamping codes to R(bound / s) + z clamps the real value.
        """
        zero, low, high = self.output.zero_point, self.output.format.qmin, self.output.format.qmax
        _, after = self._split_at_sum()
        for node in after:
            codes = [None if v is None else self._code(v) for v in self._bounds(node)]
            low = low if codes[0] is None else min(max(low, codes[0]), high)
            high = high if codes[1] is None else max(min(high, codes[1]), low)
        return zero, low, high

    def _code(self, bound: float) -> int:
        kernel, zero = self.unit.kernel, self.output.zero_point
        bounds, arithmetic = (None, None) if kernel is None else (kernel.bounds, kernel.arithmetic)
        rule = bounds or Bounds(arithmetic.rounding if isinstance(arithmetic, RoundingArithmetic) else "half_away")
        before = zero if rule.zero_point == "before" else 0
        ratio = torch.tensor(float(bound)) / torch.tensor(self.output.scale, dtype=torch.float32) + before
        return int(round_by(ratio, rule.rounding)) + zero - before

    def fused_sum(self) -> tuple[list[tuple[float | None, float | None]], fx.Node | None]:
        """Return (bounds of the activations before a fused addition, the other operand in real units or None)."""
        before, edge = self.addend()
        return before, None if edge is None else self.real(*edge)

    def addend(self) -> tuple[list[tuple[float | None, float | None]], tuple[fx.Node, fx.Node] | None]:
        """Return (bounds of the activations before a fused addition, (the other operand, the addition) or None)."""
        before, after = self._split_at_sum()
        fused = self.unit.group.nodes[1:]
        if len(before) + len(after) == len(fused):
            return [], None
        addition = fused[len(before)]
        (other,) = (n for _, n in slots(addition) if n not in self.unit.group.nodes)
        return [self._bounds(n) for n in before], (other, addition)

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
        codes, (scale, zero, *_) = self.constant_codes(producer, encoding), encoding.qparams
        return self.emitter.constant((codes.double() - zero.double()) * scale.double(), str(producer.target))

    def bounds(self) -> list[tuple[float | None, float | None]]:
        """Return the bounds of all ops that are fused with the root, in order."""
        return [self._bounds(n) for n in self.unit.group.nodes[1:]]

    def channels_last(self) -> bool:
        """Return True if the runtime stores an operand as its convolutions write it."""
        return any(n.name in self.emitter.channels_last for node in self.unit.group.nodes for _, n in slots(node))

    def _split_at_sum(self) -> tuple[list[fx.Node], list[fx.Node]]:
        # The activations fused with the root: those before a fused addition, and those that bound the output.
        fused = list(self.unit.group.nodes[1:])
        position = next((i for i, n in enumerate(fused) if self.partition.kinds[n] == "add"), None)
        return ([], fused) if position is None else (fused[:position], fused[position + 1 :])

    def _bounds(self, node: fx.Node) -> tuple[float | None, float | None]:
        return clamp_bounds(self.partition.context, node) or (None, None)

    def constant_codes(self, producer: fx.Node, encoding: Encoding) -> Tensor:
        """Return the integer codes of a weight or bias."""
        return encoding.codes(read_attr(self.partition.network, producer))


def apply_bounds(job: UnitContext, value: fx.Node) -> fx.Node:
    """Return the node of a unit whose output stays real: a value clamped by the activations that are fused with the root."""
    return job.emitter.call(clamp_to_bounds, value, job.bounds(), name=job.name, result=True)


def input_codes(job: UnitContext) -> Codes:
    """Return the codes of the first input."""
    return job.codes(slots(job.root)[0][1])


def operand_codes(job: UnitContext) -> tuple[Codes, Codes]:
    """Return the codes of both operands."""
    a, b = (job.codes(n) for _, n in slots(job.root))
    return a, b


def rank_of(node: fx.Node) -> int:
    """Return the number of axes over which a pool slides."""
    one, three = (F.avg_pool1d, F.adaptive_avg_pool1d), (F.avg_pool3d, F.adaptive_avg_pool3d)
    return 1 if node.target in one else 3 if node.target in three else 2


def per_axis(value: Any, rank: int) -> list[int]:
    """Return one number for each axis."""
    return [value] * rank if isinstance(value, int) else list(value)
