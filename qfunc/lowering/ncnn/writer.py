"""From a standard Q/DQ model to ncnn's layers: its nodes in order, and what its tensors are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from attrs import frozen

from qfunc.errors import DeployError
from qfunc.lowering.ncnn.builder import Blob, NcnnBuilder, floats, reciprocal, sizes
from qfunc.lowering.qdq_reader import ACTIVATIONS, REAL, Array, QdqModel, QParams, copies, dequantized

LARGEST = 127


@frozen(eq=False)
class Constant:
    """Numbers, or codes and what they stand for."""

    value: Array
    qparams: QParams | None = None

    @property
    def real(self) -> Array:
        """What it stands for, in float32."""
        return np.asarray(self.value, np.float32) if self.qparams is None else dequantized(self.value, self.qparams)


class Writer:
    """Walks the nodes of a model; `blobs` are those of the file, by the name that they have in ONNX."""

    def __init__(self, source: QdqModel) -> None:
        self.source, self.file = source, NcnnBuilder()
        self.blobs: dict[str, Blob] = {}
        self.constants: dict[str, Constant] = {n: Constant(v) for n, v in source.constants.items()}
        self.reals: dict[str, Blob] = {}
        self.sources: dict[str, Blob] = {}  # the real values whose codes a blob is
        self.done: set[str] = set()  # activations and quantizers that the layer before them does

    def write(self, writers: Mapping[str, Callable[[OpContext], None]]) -> dict[str, bytes]:
        """The files.

        Raises:
            DeployError: an op that has no layer in ncnn.
        """
        for place, info in enumerate(self.source.graph.input):
            self._input(info.name, place)
        for node in self.source.graph.node:
            if node.output[0] in self.done or not self.source.is_real(node.output[0]):
                continue
            step = OpContext(self, node)
            if node.op_type == "DequantizeLinear" or copies(node) or self.implied(node):
                self._dequantize(node)
            elif node.op_type == "QuantizeLinear":
                self._quantize(step)
            elif node.op_type in writers:
                writers[node.op_type](step)
            else:
                do = "Keep it out of the deployed model, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
                raise step.refuse(node.op_type, "a layer of ncnn", do)
        return self.file.packed([self.real(self.blob(name)) for name in self.source.outputs])

    def _input(self, name: str, place: int) -> None:
        if self.source.kind(name) != REAL:
            do = "Deploy what reads them apart, by another target."
            raise DeployError(where=f"input {name!r}", found="indices or truth values", wanted="float32", do=do)
        shape = blob_shape(self.source, name, name)
        self.blobs[name] = self.file.layer("Input", [], f"in{place}", shape, sizes(shape))

    def blob(self, name: str) -> Blob:
        """The blob of a tensor; a constant becomes one when it is first read as such."""
        if name not in self.blobs:
            self.blobs[name] = self.file.constant(name, np.atleast_1d(self.constants[name].real))
        return self.blobs[name]

    def real(self, blob: Blob) -> Blob:
        """The real values of codes: q * s."""
        if blob.scale is None:
            return blob
        if blob.name not in self.reals:
            wide = self.file.layer("Cast", [blob], f"{blob.name}.wide", blob.shape, {0: 3, 1: 1})
            times = {0: 2, 1: 1, 2: float(blob.scale)}
            self.reals[blob.name] = self.file.layer("BinaryOp", [wide], f"{blob.name}.real", blob.shape, times)
        return self.reals[blob.name]

    def _dequantize(self, node: onnx.NodeProto) -> None:
        # Codes and the real values that they stand for are one tensor.
        given, made = node.input[0], node.output[0]
        if given in self.constants:
            held = self.constants[given]
            known = self.qparams(node) if node.op_type == "DequantizeLinear" else held.qparams
            self.constants[made] = Constant(held.value, known)
        else:
            self.blobs[made] = self.blobs[given]

    def qparams(self, node: onnx.NodeProto) -> QParams:
        """Those of a QuantizeLinear or DequantizeLinear."""
        scale, zero = (self.source.constant(node, i) for i in (1, 2))
        axis = int(self.source.attribute(node, "axis", 1)) if scale.ndim else 0
        return QParams(tuple(float(s) for s in scale.ravel()), tuple(int(z) for z in zero.ravel()), axis)

    def _quantize(self, step: OpContext) -> None:
        scale = self.scale(step.node)
        blob = self.blob(step.node.input[0])
        self.blobs[step.output] = blob if blob.scale == scale else self.quantized(self.real(blob), scale, step.output)

    def quantized(self, real: Blob, scale: float, name: str) -> Blob:
        """The codes of real values."""
        held = [floats(reciprocal(scale))]
        made = self.file.layer("Quantize", [real], name, real.shape, {0: 1}, weights=held, scale=scale)
        self.sources[made.name] = real
        return made

    def implied(self, node: onnx.NodeProto) -> bool:
        """Whether a Clip is one that the codes of the quantizer behind it imply: ONNX has 8 bits only whole."""
        reader = self.source.only_reader(node.output[0]) if node.op_type == "Clip" else None
        if reader is None or reader.op_type != "QuantizeLinear":
            return False
        ends: list[Any] = [e and np.float32(e) * reciprocal(self.scale(reader)) for e in self.source.bounds(node)]
        return all(e is None or abs(e) > LARGEST - 0.5 for e in ends)

    def scale(self, node: onnx.NodeProto) -> float:
        """The one scale of a QuantizeLinear."""
        return self.qparams(node).scale[0]


class OpContext:
    """One op on its way into the file."""

    def __init__(self, writer: Writer, node: onnx.NodeProto) -> None:
        self.writer, self.source, self.file, self.node = writer, writer.source, writer.file, node
        self.output = str(node.output[0])

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute of the node."""
        return self.source.attribute(self.node, name, default)

    def constant(self, index: int, default: Any = None) -> Any:
        """A constant input."""
        return self.source.constant(self.node, index, default)

    def held(self, index: int) -> Constant | None:
        """A constant input of numbers or codes, or None."""
        return self.writer.constants.get(self.node.input[index]) if index < len(self.node.input) else None

    def given(self, index: int = 0) -> Blob:
        """An input in real units."""
        return self.writer.real(self.writer.blob(self.node.input[index]))

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the result, without the batch."""
        return blob_shape(self.source, self.output, self.node.name)

    def layer(self, kind: str, inputs: Sequence[Blob], name: str, shape: Sequence[int], **parameters: Any) -> Blob:
        """A layer inside the op; parameters are named p0, p1, ..."""
        by_number = {int(k[1:]): v for k, v in parameters.items()}
        return self.file.layer(kind, inputs, f"{self.output}.{name}" if name else self.output, shape, by_number)

    def makes(self, kind: str, *inputs: Blob, **parameters: Any) -> None:
        """The layer that makes the op's result."""
        self.keep(self.layer(kind, inputs, "", self.shape, **parameters))

    def keep(self, blob: Blob, output: str = "") -> None:
        """An existing blob as the op's result."""
        self.writer.blobs[output or self.output] = blob

    def reshaped(self, blob: Blob, shape: Sequence[int], name: str = "shaped") -> Blob:
        """The same entries in another shape."""
        if tuple(shape) == blob.shape:
            return blob
        made = f"{self.output}.{name}" if name else self.output
        return self.file.layer("Reshape", [blob], made, shape, sizes(shape), scale=blob.scale)

    def rows_of(self, blob: Blob, shape: Sequence[int]) -> Blob:
        """The same entries with an axis more: of codes, those of the reshaped real values, as ncnn misplaces bytes there."""
        real = self.writer.sources.get(blob.name)
        if real is None or blob.scale is None:
            return self.reshaped(self.writer.real(blob), shape, "row")
        return self.writer.quantized(self.reshaped(real, shape, "row"), blob.scale, f"{self.output}.row.codes")

    def fused(self) -> tuple[list[onnx.NodeProto], tuple[float | None, float | None] | None, onnx.NodeProto | None]:
        """(the nodes that the layer does, the bounds of the activation among them, the quantizer right behind them)."""
        steps, quantizer = self.source.result(self.output)
        bounds: tuple[float | None, float | None] | None = None
        for place, node in enumerate(steps):
            if node.op_type not in ACTIVATIONS or self.writer.implied(node):
                continue
            if bounds is not None:
                return steps[:place], bounds, None
            bounds = self.source.bounds(node)
        return steps, bounds, quantizer

    def refuse(self, found: str, wanted: str, do: str) -> DeployError:
        """The error of an op that ncnn cannot say."""
        return DeployError(where=f"op {self.node.name!r}", found=found, wanted=wanted, do=do)


def blob_shape(source: QdqModel, name: str, node: str) -> tuple[int, ...]:
    """The sizes of a tensor without its batch, the outermost first.

    Raises:
        DeployError: the examples do not lie along the first axis, or more axes than four.
    """
    shape = source.shape(name, node)
    if source.varies(name) not in (0, None):
        do = "Let the first axis be the batch's, or join the ones behind it."
        raise DeployError(where=f"op {node!r}", found=f"examples along axis {source.varies(name)}", wanted="axis 0", do=do)
    shape = (shape[1:] if shape[:1] == (1,) else shape) or (1,)
    if len(shape) > 4:
        do = "Join some of them."
        raise DeployError(where=f"op {node!r}", found=f"{len(shape)} axes behind the batch", wanted="four at most", do=do)
    return shape


__all__ = ["Constant", "OpContext", "Writer", "blob_shape"]
