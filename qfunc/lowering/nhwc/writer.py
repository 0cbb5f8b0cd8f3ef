"""Write a Q/DQ model as TFLite's operators: the nodes in order, and the memory layout of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx

from qfunc.errors import DeployError
from qfunc.lowering.constant_folding import folded_constants
from qfunc.lowering.format_checks import SeparateExamples, require_batch, require_real
from qfunc.lowering.nhwc.tensor import Builder, NhwcTensor
from qfunc.lowering.program import ProgramUnit
from qfunc.lowering.qdq.qparams import QParams, dequantized
from qfunc.lowering.qdq.reader import QdqModel, walk

_INPUTS: dict[int, Any] = {
    onnx.TensorProto.FLOAT: np.float32,
    onnx.TensorProto.INT64: np.int64,
    onnx.TensorProto.INT32: np.int32,
}


LAST = ".nhwc"
"""The suffix of a tensor's name if its channels, axis 1 of the model's tensor, are last."""


POSITIONS = ("ArgMax", "ArgMin")
"""Ops whose results are integers, which are written where the model returns them."""


COLUMNS = ".columns"
"""The suffix of a flattened image's name if the channels of the image are last."""


UnitWriter = Callable[["Writer", list[onnx.NodeProto]], None]
"""The writer of one unit, which is given the nodes that are not folded.  It marks their outputs as done."""

_EMPTY: Mapping[str, UnitWriter] = MappingProxyType({})


class Writer:
    """The writer of one model; `tensors` maps names in ONNX to tensors of the file, `units` the nodes to their units."""

    def __init__(self, source: QdqModel, file: Builder, units: Mapping[str, ProgramUnit]) -> None:
        self.source, self.file, self.units = source, file, units
        self.nodes = {node.name: node for node in source.graph.node}
        self.tensors: dict[str, NhwcTensor] = {}
        self.derived: dict[tuple[int, str], NhwcTensor] = {}  # (a tensor, the same tensor in another layout)
        self.constants: list[NhwcTensor] = []
        constants = folded_constants(source, curves=file.curves)
        self.folded = {n: v for n, v in constants.items() if not (file.batched and _has_batch(source, n))}
        self.done: set[str] = set(self.folded)  # also activations and quantizers that are fused into the op before them

    def write(
        self, writers: Mapping[str, Callable[[Writer, onnx.NodeProto], None]], composed: Mapping[str, UnitWriter] = _EMPTY
    ) -> bytes:
        """Return the file.

        Args:
            writers: The writer of each operator of ONNX.
            composed: The writers of units on codes that ONNX has as several nodes, by the kind of the unit.
        Raises:
            DeployError: an op that TFLite does not have.
        """
        inputs = [self._input(info.name) for info in self.source.graph.input]
        examples = SeparateExamples(self.source)

        def write(node: onnx.NodeProto) -> None:
            unit = self.units.get(node.name)
            if unit is not None and unit.codes and unit.kind in composed:
                return composed[unit.kind](self, self.unit_nodes(node))
            if node.op_type not in writers:
                do = "Keep it out of the deployed model, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
                wanted = f"an op that {self.file.lowering} writes"
                raise DeployError(where=f"op {node.name!r}", found=node.op_type, wanted=wanted, do=do)
            if not self.file.batched:
                examples.follow(node)
            writers[node.op_type](self, node)

        walk(self.source, self.done, dequantize=self._dequantize, quantize=self._quantize, write=write)
        for name in self.source.outputs:
            node = self.source.producers.get(name)
            if node is not None and node.op_type in POSITIONS and name not in self.done:
                write(node)
        for name in self.source.outputs:
            examples.require_together(name, f"output {name!r}")
        return self.file.serialize(inputs, [self._output(name) for name in self.source.outputs])

    def on_codes(self, node: onnx.NodeProto) -> bool:
        """Return True if the unit of a node computes codes from codes."""
        unit = self.units.get(node.name)
        return unit is not None and unit.codes

    def unit_nodes(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return the nodes of a node's unit that are not yet written; folded nodes are not."""
        unit = self.units.get(node.name)
        nodes = [node] if unit is None else [self.nodes[name] for name in unit.nodes]
        return [node for node in nodes if node.output[0] not in self.done]

    def _input(self, name: str) -> NhwcTensor:
        kind = self.source.kind(name)
        if kind not in _INPUTS:
            do = "Compute masks inside the model."
            raise DeployError(where=f"input {name!r}", found="booleans", wanted="float32 or indices", do=do)
        varies = self.source.varies(name)
        if not self.file.batched:
            require_batch(self.source, name)
        self.tensors[name] = self.file.tensor(name, self.source.shape(name, name), varies=varies, dtype=_INPUTS[kind])
        return self.tensors[name]

    def _output(self, name: str) -> NhwcTensor:
        tensor = self.real(self.plain(self.tensor(name)), name)
        return tensor

    def tensor(self, name: str) -> NhwcTensor:
        """Return the tensor of that name in ONNX; `stored` writes a constant to the file where an operator reads it.

        Raises:
            DeployError: a tensor of indices or booleans that the model computes.
        """
        if name not in self.tensors:
            if name not in self.folded:
                require_real(self.source, name)
            array = np.asarray(self.folded[name] if name in self.folded else self.source.constants[name], np.float32)
            self.tensors[name] = NhwcTensor(-1, name, array.shape, None, value=array)
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
        tensor, qparams = self.tensor(node.input[0]), self.source.qparams(node)
        if tensor.qparams == qparams:
            self.tensors[node.output[0]] = tensor
            return
        real = self.real(tensor)
        result = self.make(node.output[0], real.shape, qparams, last=real.last, order=real.order)
        self.file.operator("QUANTIZE", [real], [result], "QuantizeOptions")
        self.tensors[node.output[0]] = result

    def make(self, name: str, shape: Sequence[int], qparams: QParams | None, *, last: bool = False, **place: Any) -> NhwcTensor:
        """Return a new tensor with the suffix of its layout."""
        ending = LAST if last else COLUMNS if place.get("order") is not None else ""
        return self.file.tensor(name + ending, shape, qparams, last=last, **place)

    def stored(self, tensor: NhwcTensor) -> NhwcTensor:
        """Return a tensor of the file; a constant is stored at its first use."""
        if tensor.index >= 0:
            return tensor
        assert tensor.value is not None
        key = (id(tensor), "stored")
        if key not in self.derived:
            self.constants.append(tensor)
            self.derived[key] = self.file.tensor(
                tensor.name, tensor.shape, tensor.qparams, value=tensor.value, last=tensor.last
            )
        return self.derived[key]

    def real(self, tensor: NhwcTensor, name: str = "") -> NhwcTensor:
        """Return the real values of a tensor, by a DEQUANTIZE if it has codes."""
        if tensor.qparams is None:
            return self.stored(tensor)
        if tensor.value is not None and not name:
            return self._real_constant(tensor)
        key = (tensor.index, "real")
        if key not in self.derived or name:
            result = self.make(name or f"{base(tensor)}.real", tensor.shape, None, last=tensor.last, order=tensor.order)
            self.file.operator("DEQUANTIZE", [self.stored(tensor)], [result], "DequantizeOptions")
            self.derived.setdefault(key, result)
            return result
        return self.derived[key]

    def _real_constant(self, tensor: NhwcTensor) -> NhwcTensor:
        key = (id(tensor), "real")
        if key not in self.derived:
            assert tensor.value is not None
            assert tensor.qparams is not None
            self.constants.append(tensor)  # kept alive, so that its id stays unique
            value = dequantized(tensor.value, tensor.qparams)
            self.derived[key] = self.file.tensor(f"{tensor.name}.real", value.shape, value=value)
        return self.derived[key]

    def plain(self, tensor: NhwcTensor) -> NhwcTensor:
        """Return a tensor with its axes in the order of the model."""
        if tensor.order is not None:
            raise DeployError(
                where=f"tensor {tensor.name!r}", found="a flattened image before an op that is not a linear layer",
                wanted="a linear layer after it", do="Flatten directly before a linear layer.",
            )  # fmt: skip
        if not tensor.last:
            return tensor
        order = [0, len(tensor.shape) - 1, *range(1, len(tensor.shape) - 1)]
        return self.transposed(tensor, order, last=False)

    def channels_last(self, tensor: NhwcTensor) -> NhwcTensor:
        """Return a tensor with its channels, axis 1 in the model, as the last axis."""
        if tensor.last or len(tensor.shape) < 3:
            return tensor
        order = [0, *range(2, len(tensor.shape)), 1]
        return self.transposed(tensor, order, last=True)

    def transposed(self, tensor: NhwcTensor, order: Sequence[int], *, last: bool) -> NhwcTensor:
        """Return a tensor with its axes in the given order."""
        if tensor.value is not None:
            value = np.ascontiguousarray(tensor.value.transpose(order))
            if tensor.index < 0:
                return NhwcTensor(-1, tensor.name, value.shape, tensor.qparams, last=last, value=value)
            return self.file.tensor(f"{base(tensor)}{LAST * last}", value.shape, tensor.qparams, value=value, last=last)
        key = (tensor.index, f"transposed {list(order)}")
        if key not in self.derived:
            result = self.make(base(tensor), [tensor.shape[i] for i in order], tensor.qparams, last=last)
            perm = self.file.integers(order, f"{base(tensor)}.order")
            self.file.operator("TRANSPOSE", [tensor, perm], [result], "TransposeOptions")
            self.derived[key] = result
        return self.derived[key]


def _has_batch(source: QdqModel, name: str) -> bool:
    # True if an axis of the tensor is the batch, so that the value for one example is not its value.
    return not source.has_sizes(name) or source.varies(name) is not None


def base(tensor: NhwcTensor) -> str:
    """Return the name of a tensor without the suffix of its layout."""
    return tensor.name.removesuffix(LAST)
