"""Write arithmetic on tensors of int32: the operands of an operator are tensors, numbers and arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.targets.tosa.builder import TosaBuilder
from qfunc.targets.tosa.rescale import rescale

Operand = NhwcTensor | int | np.ndarray[Any, Any]


class Integers:
    """Writes operators on int32 inside of one op; each result is a new tensor.

    Args:
        name: The name of the op's result, with which the names of the tensors begin.
        rank: The rank of all tensors, since TOSA broadcasts tensors of equal rank only.
    """

    def __init__(self, graph: TosaBuilder, name: str, rank: int) -> None:
        self.graph, self.name, self.rank, self.count = graph, name, rank, 0
        self.numbers: dict[int, NhwcTensor] = {}

    def __call__(self, op: str, *operands: Operand, **attributes: Any) -> NhwcTensor:
        """Write an elementwise operator, and return its result."""
        tensors = [self._tensor(operand) for operand in operands]
        result = self._new(op, np.broadcast_shapes(*(t.shape for t in tensors)))
        self.graph.node(op, tensors, result, **attributes)
        return result

    def product(self, a: Operand, b: Operand, shift: int = 0) -> NhwcTensor:
        """Return a * b * 2^-shift, rounded half up."""
        pair = [self._tensor(operand) for operand in (a, b)]
        result = self._new("MUL", np.broadcast_shapes(*(t.shape for t in pair)))
        self.graph.node("MUL", [*pair, self.graph.constant(shift, np.int8)], result)
        return result

    def left(self, x: Operand, by: Operand) -> NhwcTensor:
        """Return x * 2^by."""
        return self("LOGICAL_LEFT_SHIFT", x, by)

    def right(self, x: Operand, by: Operand, *, rounds: bool) -> NhwcTensor:
        """Return x * 2^-by, rounded half up or, if not `rounds`, down."""
        return self("ARITHMETIC_RIGHT_SHIFT", x, by, round=int(rounds))

    def scaled(self, x: NhwcTensor, m: int, e: int, zero: int = 0) -> NhwcTensor:
        """Return (x - zero) * m * 2^-e, rounded half up."""
        result = self._new("RESCALE", x.shape)
        rescale(self.graph, x, result, (np.array([m]), np.array([e])), input_zero=zero)
        return result

    def wide(self, x: NhwcTensor, zero: int) -> NhwcTensor:
        """Return the int32 of codes minus a zero point."""
        return self.scaled(x, 1 << 30, 30, zero)

    def total(self, x: NhwcTensor, axis: int) -> NhwcTensor:
        """Return the sum along an axis, which stays with the length 1."""
        result = self._new("REDUCE_SUM", [1 if i == axis else n for i, n in enumerate(x.shape)])
        self.graph.node("REDUCE_SUM", [x], result, axis=axis)
        return result

    def from_table(self, values: Sequence[int], index: NhwcTensor) -> NhwcTensor:
        """Return the entries of a table of 256 numbers in [0, 2^31) at int8 indices, from -128 on: a TABLE for each byte."""
        numbers, total = np.asarray(values, np.int64), None
        for byte in range((int(numbers.max()).bit_length() + 7) // 8 - 1, -1, -1):
            codes = ((numbers >> 8 * byte & 255) - 128).astype(np.int8)
            digit = self.graph.tensor_like(index, f"byte{byte}")
            self.graph.node("TABLE", [index, self.graph.constant(codes, np.int8, f"{digit.name}.table")], digit)
            number = self.wide(digit, -128)
            total = number if total is None else self("ADD", self.left(total, 8), number)
        assert total is not None
        return total

    def _new(self, op: str, shape: Sequence[int]) -> NhwcTensor:
        self.count += 1
        return self.graph.int32_tensor(f"{self.name}.{op.lower()}{self.count}", shape)

    def _tensor(self, operand: Operand) -> NhwcTensor:
        if isinstance(operand, NhwcTensor):
            return operand
        if isinstance(operand, np.ndarray):
            value = operand.astype(np.int32)
            self.count += 1
            return self.graph.tensor(f"{self.name}.constant{self.count}", value.shape, value=value)
        if operand not in self.numbers:
            value = np.full([1] * self.rank, operand, np.int32)
            self.numbers[operand] = self.graph.tensor(f"{self.name}.number{len(self.numbers)}", value.shape, value=value)
        return self.numbers[operand]
