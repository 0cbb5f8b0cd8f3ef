"""From a Q/DQ model to a file of TFLite's operators: the nodes in order, and the memory layout of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from qfunc.errors import DeployError
from qfunc.lowering.nhwc.tensor import Builder, NhwcTensor
from qfunc.lowering.qdq_reader import QdqModel, QParams, dequantized, walk

__all__ = ["LAST", "Writer", "base"]


_INPUTS: dict[int, Any] = {
    onnx.TensorProto.FLOAT: np.float32,
    onnx.TensorProto.INT64: np.int64,
    onnx.TensorProto.INT32: np.int32,
}


LAST = ".nhwc"
"""The suffix of a tensor's name if its channels, axis 1 of the model's tensor, are last."""


COLUMNS = ".columns"
"""The suffix of a flattened image's name if its channels were last."""


class Writer:
    """Walks the nodes of a model; `tensors` are those of the file, by the name that they have in ONNX."""

    def __init__(self, source: QdqModel, file: Builder) -> None:
        self.source, self.file = source, file
        self.tensors: dict[str, NhwcTensor] = {}
        self.other: dict[tuple[int, str], NhwcTensor] = {}  # (a tensor, what was made of it)
        self.constants: list[NhwcTensor] = []
        self.done: set[str] = set()  # activations and quantizers that the op before them does

    def write(self, writers: Mapping[str, Callable[[Writer, onnx.NodeProto], None]]) -> bytes:
        """Return the file.

        Raises:
            DeployError: an op that has no form in TFLite.
        """
        inputs = [self._input(info.name) for info in self.source.graph.input]

        def write(node: onnx.NodeProto) -> None:
            if node.op_type not in writers:
                do = "Keep it out of the deployed model, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
                wanted = f"an op that {self.file.lowering} writes"
                raise DeployError(where=f"op {node.name!r}", found=node.op_type, wanted=wanted, do=do)
            writers[node.op_type](self, node)

        walk(self.source, self.done, dequantize=self._dequantize, quantize=self._quantize, write=write)
        return self.file.packed(inputs, [self._output(name) for name in self.source.outputs])

    def _input(self, name: str) -> NhwcTensor:
        kind = self.source.kind(name)
        if kind not in _INPUTS:
            do = "Keep masks out of the model's inputs."
            raise DeployError(where=f"input {name!r}", found="truth values", wanted="float32 or indices", do=do)
        varies = self.source.varies(name)
        self.tensors[name] = self.file.tensor(name, self.source.shape(name, name), varies=varies, dtype=_INPUTS[kind])
        return self.tensors[name]

    def _output(self, name: str) -> NhwcTensor:
        held = self.real(self.plain(self.tensor(name)), name)
        return held

    def tensor(self, name: str) -> NhwcTensor:
        """Return the tensor of that name in ONNX; constants are stored when they are first read."""
        if name not in self.tensors:
            array = np.asarray(self.source.constants[name], np.float32)
            self.tensors[name] = self.file.tensor(name, array.shape, value=array)
        return self.tensors[name]

    def _dequantize(self, node: onnx.NodeProto) -> None:
        # Codes and their real values are one tensor.
        codes, result = node.input[0], node.output[0]
        if codes in self.tensors or node.op_type != "DequantizeLinear":
            self.tensors[result] = self.tensor(codes)
            return
        value = self.source.constants[codes]
        name, qparams = codes.removesuffix(".codes"), self.source.qparams(node)
        self.tensors[result] = NhwcTensor(-1, name, value.shape, qparams, value=value)

    def _quantize(self, node: onnx.NodeProto) -> None:
        held, qparams = self.tensor(node.input[0]), self.source.qparams(node)
        if held.qparams == qparams:
            self.tensors[node.output[0]] = held
            return
        real = self.real(held)
        made = self.make(node.output[0], real.shape, qparams, last=real.last)
        self.file.operator("QUANTIZE", [real], [made], "QuantizeOptions")
        self.tensors[node.output[0]] = made

    def make(self, name: str, shape: Sequence[int], qparams: QParams | None, *, last: bool = False, **place: Any) -> NhwcTensor:
        """Return a new tensor with the suffix of its layout."""
        ending = LAST if last else COLUMNS if place.get("order") is not None else ""
        return self.file.tensor(name + ending, shape, qparams, last=last, **place)

    def stored(self, held: NhwcTensor) -> NhwcTensor:
        """Return a constant of codes as a tensor of the file."""
        if held.index >= 0:
            return held
        assert held.value is not None
        key = (id(held), "stored")
        if key not in self.other:
            self.constants.append(held)
            self.other[key] = self.file.tensor(held.name, held.shape, held.qparams, value=held.value, last=held.last)
        return self.other[key]

    def real(self, held: NhwcTensor, name: str = "") -> NhwcTensor:
        """Return the real values of a tensor."""
        if held.qparams is None:
            return self.stored(held)
        if held.value is not None and not name:
            return self._real_constant(held)
        key = (held.index, "real")
        if key not in self.other or name:
            made = self.make(name or f"{base(held)}.real", held.shape, None, last=held.last, order=held.order)
            self.file.operator("DEQUANTIZE", [self.stored(held)], [made], "DequantizeOptions")
            self.other.setdefault(key, made)
            return made
        return self.other[key]

    def _real_constant(self, held: NhwcTensor) -> NhwcTensor:
        key = (id(held), "real")
        if key not in self.other:
            assert held.value is not None
            assert held.qparams is not None
            self.constants.append(held)  # so that no other tensor gets its id
            value = dequantized(held.value, held.qparams)
            self.other[key] = self.file.tensor(f"{held.name}.real", value.shape, value=value)
        return self.other[key]

    def plain(self, held: NhwcTensor) -> NhwcTensor:
        """Return a tensor with its axes as the model has them."""
        if held.order is not None:
            raise DeployError(
                where=f"tensor {held.name!r}", found="a flattened image read by an op that is no linear layer",
                wanted="a linear layer behind it", do="Put the flattening right before a linear layer.",
            )  # fmt: skip
        if not held.last:
            return held
        order = [0, len(held.shape) - 1, *range(1, len(held.shape) - 1)]
        return self.turned(held, order, last=False)

    def channels_last(self, held: NhwcTensor) -> NhwcTensor:
        """Return a tensor with its channels, axis 1 of the model's own, last."""
        if held.last or len(held.shape) < 3:
            return held
        order = [0, *range(2, len(held.shape)), 1]
        return self.turned(held, order, last=True)

    def turned(self, held: NhwcTensor, order: Sequence[int], *, last: bool) -> NhwcTensor:
        """Return a tensor with its axes in that order."""
        if held.value is not None:
            value = np.ascontiguousarray(held.value.transpose(order))
            if held.index < 0:
                return NhwcTensor(-1, held.name, value.shape, held.qparams, last=last, value=value)
            return self.file.tensor(f"{base(held)}{LAST * last}", value.shape, held.qparams, value=value, last=last)
        key = (held.index, f"turned {list(order)}")
        if key not in self.other:
            made = self.make(base(held), [held.shape[i] for i in order], held.qparams, last=last)
            perm = self.file.integers(order, f"{base(held)}.order")
            self.file.operator("TRANSPOSE", [held, perm], [made], "TransposeOptions")
            self.other[key] = made
        return self.other[key]


def base(held: NhwcTensor) -> str:
    """Return the name of a tensor without the suffix of its layout."""
    return held.name.removesuffix(LAST)
