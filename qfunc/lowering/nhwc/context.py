"""The context of one op: its inputs, its result, and whether it computes on codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from qfunc.errors import DeployError
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.nhwc.writer import Writer
from qfunc.lowering.qdq.qparams import Array, QParams, dequantized

_FUSED: dict[tuple[float | None, float | None], str] = {
    (None, None): "NONE", (0.0, None): "RELU", (0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1",
}  # fmt: skip


class OpContext:
    """The op that is being written.

    `codes` is True if the op computes on codes: its inputs are codes, and so is its result after the activations
    that TFLite fuses.
    """

    def __init__(self, writer: Writer, node: onnx.NodeProto, index: int = 0) -> None:
        self.writer, self.source, self.node, self.file = writer, writer.source, node, writer.file
        self.output, self.codes = str(node.output[index]), False
        self.steps: list[onnx.NodeProto] = []
        self.quantizer: onnx.NodeProto | None = None
        self.qparams: QParams | None = None
        self._bound: tuple[float | None, float | None] = (None, None)

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the node."""
        return self.source.attribute(self.node, name, default)

    def constant(self, index: int, default: Any = None) -> Any:
        """Return a constant input."""
        number = self.number(index)
        return self.source.constant(self.node, index, default) if number is None else number

    def number(self, index: int) -> Any:
        """Return the array of an input of numbers, sizes or booleans that no input of the model changes, else None."""
        name = self.node.input[index] if index < len(self.node.input) else ""
        folded = self.writer.folded.get(name)
        return self.source.constants.get(name) if folded is None else folded

    def input(self, index: int = 0) -> NhwcTensor:
        """Return an input: codes if the op computes on codes, else real values."""
        tensor = self.writer.tensor(self.node.input[index])
        return self.writer.stored(tensor) if self.codes else self.writer.real(tensor)

    def array(self, index: int) -> tuple[Array, QParams | None]:
        """Return a constant input: its codes and qparams if it has blocks or the op computes on codes, else reals and None."""
        tensor = self.writer.tensor(self.node.input[index])
        if tensor.value is None:
            raise self.refuse(f"input {tensor.name!r}, computed", "a constant", "Compute it once, outside the model.")
        if self.codes or tensor.qparams is None or tensor.qparams.block is not None:
            return tensor.value, tensor.qparams
        return dequantized(tensor.value, tensor.qparams), None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result for one example, in the layout of the model."""
        return self.source.shape(self.output, self.node.name)

    def on_codes(self, *inputs: int, fuses: bool = False) -> bool:
        """Return True if the op computes codes from codes, and then set `codes`.  Call it once, before the inputs are read.

        Args:
            inputs: The indices of its inputs of codes.  Inside of a unit that ONNX has as several nodes they may be real.
            fuses: The operator has a fused activation.
        Raises:
            DeployError: an activation in the unit that the operator does not have, and that the codes do not imply.
        """
        steps, quantizer = self.source.result(self.output)
        if quantizer is None or not self.writer.on_codes(self.node):
            return False
        if any(self.writer.tensor(self.node.input[i]).qparams is None for i in inputs):
            return False
        self.codes, self.steps, self.quantizer, self.qparams = True, steps, quantizer, self.source.qparams(quantizer)
        ends = np.iinfo(self.file.code_type)
        bounds = (self.source.bounds(s) for s in steps)
        real = [b for b in bounds if not self.qparams.imply(b, (int(ends.min), int(ends.max)))]
        if real and (not fuses or len(real) > 1 or real[0] not in _FUSED):
            wanted = "one of relu, relu6 and a clamp to [-1, 1]" if fuses else "no bounds but the ends of the codes"
            raise self.refuse(f"the bounds {real} in one unit with it", wanted, "Take the fusion out of the target.")
        self._bound = real[0] if real else (None, None)
        return True

    @property
    def activation(self) -> str:
        """The name in TFLite of the activation that is fused into the op."""
        return _FUSED[self._bound] if self.codes else "NONE"

    @property
    def name(self) -> str:
        """The result's name in ONNX."""
        return self.output if self.quantizer is None else str(self.quantizer.output[0])

    def result(self, shape: Sequence[int], **place: Any) -> NhwcTensor:
        """Return a new tensor for the op's result, and mark the nodes up to its quantizer as done."""
        return self.keep(self.writer.make(self.name, shape, self.qparams, **place))

    def keep(self, tensor: NhwcTensor) -> NhwcTensor:
        """Use an existing tensor as the op's result, and return it."""
        self.writer.tensors[self.name] = tensor
        if self.quantizer is not None:
            self.writer.done.update([self.name, *(s.output[0] for s in self.steps)])
        return tensor

    def inner(self, name: str, shape: Sequence[int], like: NhwcTensor | None = None, **place: Any) -> NhwcTensor:
        """Return a new tensor inside the op, with the qparams of `like` or of the result."""
        return self.writer.make(f"{self.name}.{name}", shape, self.qparams if like is None else like.qparams, **place)

    def reshaped(self, tensor: NhwcTensor, shape: Sequence[int], into: NhwcTensor, varies: int | None = 0) -> NhwcTensor:
        """Write a RESHAPE of a tensor into `into`, and return `into`. The axis `varies` of the result is the batch."""
        sizes = np.array([-1 if i == varies else n for i, n in enumerate(shape)], np.int32)
        wanted = self.file.integers(sizes, f"{self.name}.shape")
        self.file.operator("RESHAPE", [tensor, wanted], [into], "ReshapeOptions", newShape=sizes)
        return into

    def refuse(self, found: str, wanted: str, do: str) -> DeployError:
        """Return the error of an op that TFLite cannot represent."""
        return DeployError(where=f"op {self.node.name!r}", found=found, wanted=wanted, do=do)


def node_writer(write: Callable[[OpContext], None]) -> Callable[[Writer, onnx.NodeProto], None]:
    """Return a writer of nodes that calls `write` with the context of each node."""
    return lambda writer, node: write(OpContext(writer, node))
