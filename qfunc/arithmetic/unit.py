"""A unit as an arithmetic sees it: kind, arguments, operands with their codings, fused ops; no graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, cast

import torch
from attrs import field, frozen
from torch import Tensor, nn

from qfunc.errors import EmulationError
from qfunc.numerics.affine import dequantize
from qfunc.numerics.qparams import Affine
from qfunc.numerics.rounding import round_by
from qfunc.specs import Bounds, Int, Scheme

_CLAMP = tuple[float | None, float | None]


@frozen(eq=False)
class Coding:
    """How the codes q of a tensor represent real values: x = (q - zero_point) * scale.

    Attributes:
        scheme: The format, the granularity and the rounding.
        qparams: The scale and the zero point; None in `Arithmetic.refuses`.
        derived: True for a bias whose scale is the product of the scales of input and weight.
    """

    scheme: Scheme
    qparams: Affine | None = None
    derived: bool = False

    @cached_property
    def format(self) -> Int:
        """The integer format."""
        fmt = self.scheme.format
        assert isinstance(fmt, Int)
        return fmt

    @property
    def scales(self) -> Tensor:
        """The scales in float32: one number, or one for each channel."""
        return self._qparams.scale

    @property
    def zero_points(self) -> Tensor:
        """The zero points: one number, or one for each channel."""
        return self._qparams.zero_point

    @cached_property
    def scale(self) -> float:
        """The scale, if the tensor has one."""
        return float(self.scales)

    @cached_property
    def zero_point(self) -> int:
        """The zero point, if the tensor has one."""
        return int(self.zero_points)

    @cached_property
    def offsets(self) -> tuple[int, int]:
        """The least and the largest q - zero_point."""
        return self.format.qmin - self.zero_point, self.format.qmax - self.zero_point

    @property
    def largest_offset(self) -> int:
        """The largest |q - zero_point|."""
        low, high = self.offsets
        return max(high, -low)

    @property
    def _qparams(self) -> Affine:
        assert self.qparams is not None, "`refuses` has no scales: put conditions on qparams into `Kernel.integer_if`"
        return self.qparams


@frozen(eq=False)
class Operand:
    """A tensor that a unit reads.

    Attributes:
        name: The name of the tensor in the model, such as "conv.weight".
        slot: "input", "weight", "bias", or "" for tensors such as masks and positions.
        coding: None for real values.
        at: The op of the unit that reads it: 0 for the root, then the fused ops in order.
        shape: The shape of a constant; None for an activation.
        channel_axis: The axis of a weight that runs over output channels.
        run_time: The scheme of an activation that is quantized at run time, or None.
        readers: The kinds of the integer units that read the tensor.
        transposed: Whether its last two axes were swapped, or its first axis became the last, right before the unit; None if
            the graph does not show it.
    """

    name: str
    slot: str
    coding: Coding | None = None
    at: int = 0
    shape: tuple[int, ...] | None = None
    channel_axis: int = 0
    run_time: Scheme | None = None
    readers: tuple[str, ...] = ()
    _read: Callable[[], Tensor] | None = field(default=None, repr=False)
    _transposed: Callable[[], bool | None] = field(default=bool, repr=False)

    @cached_property
    def transposed(self) -> bool | None:
        return self._transposed()

    @cached_property
    def constant(self) -> Tensor:
        """The codes of a constant, or its real values if it has no coding."""
        assert self._read is not None, f"{self.name!r} is an activation, or `refuses` asks for its values"
        return self._read()

    @cached_property
    def real(self) -> Tensor:
        """The real values of a constant, in float32."""
        if self.coding is None:
            return self.constant.float()
        assert self.coding.qparams is not None
        return dequantize(self.constant.float(), self.coding.qparams, self.coding.scheme)


class CodedOperand(Protocol):
    """An operand with a coding."""

    @property
    def coding(self) -> Coding:
        """How it is coded."""
        ...


@frozen
class Inner:
    """The result of an op of a unit, for an op after it: 0 is the root."""

    at: int


@frozen
class FusedOp:
    """An op that is fused with the root of a unit.

    Attributes:
        kind: Its kind.
        bounds: The (low, high) of a clamp, None for another op.
        arguments: Its arguments by the names of its signature; tensors are operands and `Inner`s.
    """

    kind: str
    bounds: _CLAMP | None = None
    arguments: Mapping[str, Any] = field(factory=dict, eq=False)


@frozen(eq=False)
class OpItself:
    """A call of the op of a unit's root as the model calls it, with other values for some operands.

    Attributes:
        values: Operand -> argument of a `Computation`; other operands have the values that the emulation has for them.
        name: The suffix of an inner result.
    """

    values: Mapping[Operand, Any]
    name: str = ""


@frozen(eq=False)
class UnitSpec:
    """One unit of a runtime.

    Attributes:
        path: Its path in the model, such as "layers.0.conv".
        kind: The kind of its root, such as "conv".
        arguments: The arguments of the root by the names of its signature; tensors are operands.
        operands: The tensors that it reads, in order.
        output: How its result is coded; None for real values.
        fused: The ops that are fused with the root, in order.
        bounds: How the bounds of fused clamps become codes.
        channels_last: True if the runtime stores the operands as its convolutions write them.
        moves_codes: True if the root moves entries and computes nothing.
        readers: The kinds of the integer units that read the result.
        spatial: The number of axes over which a pool slides.
        module: The module that the root calls, such as an InstanceNorm; None for functions.
    """

    path: str
    kind: str
    arguments: Mapping[str, Any]
    operands: tuple[Operand, ...]
    output: Coding | None
    fused: tuple[FusedOp, ...] = ()
    bounds: Bounds = field(factory=Bounds)
    channels_last: bool = False
    moves_codes: bool = False
    readers: tuple[str, ...] = ()
    spatial: int = 2
    module: nn.Module | None = None

    def itself(self) -> OpItself:
        """Return the op of the root on the codes of its first operand."""
        return OpItself({self.operands[0]: self.operands[0]})

    def operand(self, slot: str) -> Operand | None:
        """Return the first operand of the root in a slot, or None."""
        return next((o for o in self.operands if o.slot == slot and o.at == 0), None)

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:
        """The activations that the root reads."""
        return tuple(o for o in self.operands if o.slot == "input" and o.at == 0)

    @cached_property
    def coded_inputs(self) -> tuple[CodedOperand, ...]:
        """The activations that the root reads, each with its coding.

        Raises:
            EmulationError: one is real.
        """
        for x in self.inputs:
            if x.coding is None:
                raise self.error(f"the real input {x.name!r}", "inputs with qparams")
        return cast("tuple[CodedOperand, ...]", self.inputs)

    @cached_property
    def addend(self) -> Operand | None:
        """The other operand of an addition that is fused with the root, or None."""
        at = next((i for i, op in enumerate(self.fused, 1) if op.kind == "add"), None)
        return None if at is None else next(o for o in self.operands if o.at == at)

    @property
    def coding(self) -> Coding:
        """The coding of the result.

        Raises:
            EmulationError: the result is real.
        """
        if self.output is None:
            raise self.error("an output without qparams", "an output with qparams", "Let the arithmetic refuse real outputs.")
        return self.output

    @cached_property
    def code_range(self) -> tuple[int, int, int]:
        """The zero point of the result, and its lowest and highest code within the bounds of fused clamps.

        Rounding is monotonic, so that clamping codes to R(bound / s) + z clamps the real values.
        """
        coding = self.coding
        zero, low, high = coding.zero_point, coding.format.qmin, coding.format.qmax
        for least, most in self.clamps[1]:
            low = low if least is None else min(max(low, self._code(least)), high)
            high = high if most is None else max(min(high, self._code(most)), low)
        return zero, low, high

    @cached_property
    def clamps(self) -> tuple[list[_CLAMP], list[_CLAMP]]:
        """The bounds of the clamps before a fused addition, and of those after it; all are after it if there is none."""
        at = next((i for i, op in enumerate(self.fused) if op.kind == "add"), None)
        every = self.every_clamp
        return ([], every) if at is None else (every[:at], every[at + 1 :])

    @property
    def every_clamp(self) -> list[_CLAMP]:
        """The bounds of all ops that are fused with the root, in order; an addition has none."""
        return [op.bounds or (None, None) for op in self.fused]

    def _code(self, bound: float) -> int:
        zero, scale = self.coding.zero_point, torch.tensor(self.coding.scale, dtype=torch.float32)
        before = zero if self.bounds.zero_point == "before" else 0
        return int(round_by(torch.tensor(float(bound)) / scale + before, self.bounds.rounding)) + zero - before

    def error(self, found: str, wanted: str, do: str = "Bind another arithmetic in the target's kernels.") -> EmulationError:
        """Return the error for a unit that an arithmetic does not take."""
        return EmulationError(where=f"unit {self.path!r}", found=found, wanted=wanted, do=do)

    def unfit(self, arithmetic: object, kinds: Sequence[str]) -> EmulationError:
        """Return the error for a unit of another kind than an arithmetic computes."""
        found = f"{type(arithmetic).__name__} for an op of kind {self.kind!r}"
        return self.error(found, f"an op of kind {' or '.join(map(repr, kinds))}")


def axes_of_mean(unit: UnitSpec) -> tuple[list[Any], bool]:
    """Return the axes of a mean, of which no axes are all axes, and whether the result keeps them."""
    dims = unit.arguments["dim"]
    several = dims if isinstance(dims, list | tuple) else () if dims is None else (dims,)
    return list(several), bool(unit.arguments["keepdim"])
