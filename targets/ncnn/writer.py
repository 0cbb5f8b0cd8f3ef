"""Write a Q/DQ model as ncnn's layers: the nodes in order, and a blob for each tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from attrs import frozen

from qfunc.errors import DeployError
from qfunc.lowering.constant_folding import folded
from qfunc.lowering.format_checks import SeparateExamples, require_real
from qfunc.lowering.qdq.qparams import Array, QParams, dequantized
from qfunc.lowering.qdq.reader import ACTIVATIONS, REAL, copies, walk
from qfunc.targets.ncnn.axes import MOST, blob_shape, example_shape, name_with_axis, require_first
from qfunc.targets.ncnn.builder import Blob, NcnnBuilder, floats, reciprocal, sizes

LARGEST = 127
POSITIONS = ("ArgMax", "ArgMin")
INDICES = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)


@frozen(eq=False)
class Constant:
    """A constant: real numbers, or codes with their qparams."""

    value: Array
    qparams: QParams | None = None

    @property
    def real(self) -> Array:
        """Return the real values, in float32."""
        return np.asarray(self.value, np.float32) if self.qparams is None else dequantized(self.value, self.qparams)


class Writer:
    """The writer of one model; `blobs` maps names in ONNX to blobs of the file."""

    def __init__(self, model: onnx.ModelProto) -> None:
        source, values = folded(model)
        self.source, self.file = source, NcnnBuilder()
        self.blobs: dict[str, Blob] = {}
        self.constants: dict[str, Constant] = {n: Constant(v) for n, v in (*source.constants.items(), *values.items())}
        self.reals: dict[str, Blob] = {}
        self.indices: dict[str, Blob] = {}  # inputs of indices
        self.sources: dict[str, Blob] = {}  # blob of codes -> blob of the real values that it quantizes
        self.done: set[str] = set(values)  # also activations and quantizers that are fused into the layer before them
        self.examples = SeparateExamples(source)

    def write(self, writers: Mapping[str, Callable[[OpContext], None]]) -> dict[str, bytes]:
        """Return the files.

        Raises:
            DeployError: an op without a layer in ncnn.
        """
        for place, info in enumerate(self.source.graph.input):
            self._input(info.name, place)

        def write(node: onnx.NodeProto) -> None:
            step = OpContext(self, node)
            self.examples.follow(node)
            if node.op_type not in writers:
                do = "Keep it out of the deployed model, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
                raise step.refuse(node.op_type, "a layer of ncnn", do)
            writers[node.op_type](step)

        walk(self.source, self.done, dequantize=self._dequantize, quantize=self._quantize, write=write, passes=self._passes)
        for name in self.source.outputs:
            node = self.source.producers.get(name)
            if node is not None and node.op_type in POSITIONS and name not in self.constants:
                write(node)
        return self.file.serialize([self._output(name) for name in self.source.outputs])

    def _input(self, name: str, place: int) -> None:
        kind, shape = self.source.kind(name), example_shape(self.source, name, name)
        require_first(self.examples, name, f"input {name!r}")
        if kind not in (REAL, *INDICES):
            do = "Move the ops that read it out of the deployed model."
            raise DeployError(where=f"input {name!r}", found="booleans", wanted="float32 or indices", do=do)
        if len(shape) > MOST:
            found, do = f"{len(shape)} axes after the batch", "Reshape the tensor to fewer axes."
            raise DeployError(where=f"input {name!r}", found=found, wanted="at most four axes", do=do)
        blob = self.file.layer("Input", [], f"in{place}", shape, sizes(shape))
        (self.blobs if kind == REAL else self.indices)[name] = blob

    def _output(self, name: str) -> Blob:
        require_first(self.examples, name, f"output {name!r}")
        return self.real(self.blob(name))

    def blob(self, name: str) -> Blob:
        """Return the blob of a tensor; a constant becomes a blob when it is first read.

        Raises:
            DeployError: a tensor of indices or booleans that the model computes.
        """
        if name not in self.blobs:
            if name not in self.constants:
                require_real(self.source, name)
            if name in self.indices:
                do = "Read it by an embedding, or move the ops that read it out of the deployed model."
                raise DeployError(where=f"input {name!r}", found="indices", wanted="float32", do=do)
            value = np.atleast_1d(self.constants[name].real)
            if value.ndim > MOST or (self.source.has_sizes(name) and self.source.varies(name) is not None):
                value = value.reshape(blob_shape(self.source, name, name))
            self.blobs[name] = self.file.constant(name, value)
        return self.blobs[name]

    def real(self, blob: Blob) -> Blob:
        """Return the real values of codes: q * s."""
        if blob.scale is None:
            return blob
        if blob.name not in self.reals:
            wide = self.file.layer("Cast", [blob], f"{blob.name}.wide", blob.shape, {0: 3, 1: 1}, largest=LARGEST)
            times = {0: 2, 1: 1, 2: float(blob.scale)}
            self.reals[blob.name] = self.file.layer("BinaryOp", [wide], f"{blob.name}.real", blob.shape, times)
        return self.reals[blob.name]

    def _dequantize(self, node: onnx.NodeProto) -> None:
        # Codes and their real values are one tensor.
        operand, result = node.input[0], node.output[0]
        self.examples.follow(node)
        if operand in self.constants:
            constant = self.constants[operand]
            qparams = self.source.qparams(node) if node.op_type == "DequantizeLinear" else constant.qparams
            self.constants[result] = Constant(constant.value, qparams)
        else:
            self.blobs[result] = self.blobs[operand]

    def _passes(self, node: onnx.NodeProto) -> bool:
        return copies(node) or self.implied(node)

    def _quantize(self, node: onnx.NodeProto) -> None:
        scale, blob, result = self.scale(node), self.blob(node.input[0]), str(node.output[0])
        named = name_with_axis(self.examples, result, blob.shape)
        self.blobs[result] = blob if blob.scale == scale else self.quantized(self.real(blob), scale, named)

    def quantized(self, real: Blob, scale: float, name: str) -> Blob:
        """Return the codes of real values, which are clipped first if ncnn's conversion to int32 can overflow."""
        held = [floats(reciprocal(scale))]
        if overflows(real.largest, scale):
            ends = {0: -2.0 * (LARGEST + 1) * scale, 1: 2.0 * (LARGEST + 1) * scale}
            real = self.file.layer("Clip", [real], f"{name}.clipped", real.shape, ends)
        made = self.file.layer("Quantize", [real], name, real.shape, {0: 1}, weights=held, scale=scale, largest=LARGEST * scale)
        self.sources[made.name] = real
        return made

    def implied(self, node: onnx.NodeProto) -> bool:
        """Return True if the quantizer after a Clip, which saturates at -127 and 127, implies the Clip.

        Not `QParams.imply`: ncnn multiplies by the float32 reciprocal of the scale and rounds half away from zero.
        """
        reader = self.source.only_reader(node.output[0]) if node.op_type == "Clip" else None
        if reader is None or reader.op_type != "QuantizeLinear":
            return False
        ends: list[Any] = [e and np.float32(e) * reciprocal(self.scale(reader)) for e in self.source.bounds(node)]
        return all(e is None or abs(e) > LARGEST - 0.5 for e in ends)

    def scale(self, node: onnx.NodeProto) -> float:
        """Return the one scale of a QuantizeLinear."""
        return self.source.qparams(node).scale[0]


def overflows(largest: float, scale: float) -> bool:
    """Return True if ncnn's conversion to int32 can overflow, which gives the other end of the codes."""
    return largest >= 2.0**30 * scale


class OpContext:
    """The context in which one op is written."""

    def __init__(self, writer: Writer, node: onnx.NodeProto) -> None:
        self.writer, self.source, self.file, self.node = writer, writer.source, writer.file, node
        self.output = str(node.output[0])

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the node."""
        return self.source.attribute(self.node, name, default)

    def constant(self, index: int, default: Any = None) -> Any:
        """Return a constant input."""
        return self.source.constant(self.node, index, default)

    def constant_input(self, index: int) -> Constant | None:
        """Return a constant input of numbers or codes, or None."""
        return self.writer.constants.get(self.node.input[index]) if index < len(self.node.input) else None

    def present(self, index: int) -> bool:
        """Return True if the node has that input."""
        return index < len(self.node.input) and self.node.input[index] != ""

    def input(self, index: int = 0) -> Blob:
        """Return an input in real values."""
        return self.writer.real(self.writer.blob(self.node.input[index]))

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the result's blob."""
        return blob_shape(self.source, self.output, self.node.name)

    def sizes(self, index: int = 0) -> tuple[int, ...]:
        """Return the sizes of an input for one example, with its batch axis."""
        return self.source.shape(self.node.input[index], self.node.name)

    def example(self, index: int = 0) -> tuple[int, ...]:
        """Return the sizes of an input without the batch; more than four if its blob is one row."""
        return example_shape(self.source, self.node.input[index], self.node.name)

    def layer(self, kind: str, inputs: Sequence[Blob], name: str, shape: Sequence[int], **parameters: Any) -> Blob:
        """Return a layer inside the op; parameters are named p0, p1, ..."""
        by_number = {int(k[1:]): v for k, v in parameters.items()}
        return self.file.layer(kind, inputs, f"{self.output}.{name}" if name else self.output, shape, by_number)

    def write_result(self, kind: str, *inputs: Blob, **parameters: Any) -> None:
        """Write the layer that computes the op's result."""
        self.keep(self.layer(kind, inputs, "", self.shape, **parameters))

    def keep(self, blob: Blob, output: str = "") -> None:
        """Use an existing blob as the op's result."""
        self.writer.blobs[output or self.output] = blob

    def reshaped(self, blob: Blob, shape: Sequence[int], name: str = "shaped") -> Blob:
        """Return the same entries in another shape."""
        if tuple(shape) == blob.shape:
            return blob
        full_name = f"{self.output}.{name}" if name else self.output
        return self.file.layer("Reshape", [blob], full_name, shape, sizes(shape), scale=blob.scale)

    def rows_of(self, blob: Blob, shape: Sequence[int]) -> Blob:
        """Return the same entries with one more axis; codes are quantized after the reshape, because ncnn misplaces bytes."""
        real = self.writer.sources.get(blob.name)
        if real is None or blob.scale is None:
            return self.reshaped(self.writer.real(blob), shape, "row")
        return self.writer.quantized(self.reshaped(real, shape, "row"), blob.scale, f"{self.output}.row.codes")

    def fused(self) -> tuple[list[onnx.NodeProto], tuple[float | None, float | None] | None, onnx.NodeProto | None]:
        """Return (the nodes that the layer replaces, the bounds of the activation among them, the quantizer after them)."""
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
        """Return the error of an op that ncnn cannot represent."""
        return DeployError(where=f"op {self.node.name!r}", found=found, wanted=wanted, do=do)
