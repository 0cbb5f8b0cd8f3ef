"""Build a TOSA graph from the operators of TFLite: integers only, one example."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qfunc.errors import DeployError
from qfunc.graph.constants import UniqueNames
from qfunc.lowering.constant_folding import NO_CURVES, Curves
from qfunc.lowering.flatbuffer import Table, table
from qfunc.lowering.format_checks import require_input
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.qdq.qparams import Array, QParams
from qfunc.targets.tosa.schema import INT8, INT32, operator, serialize_block

_TYPES = {np.dtype(np.int8): INT8, np.dtype(np.int32): INT32}


_MOVES = (
    "RESHAPE", "TRANSPOSE", "STRIDED_SLICE", "PAD", "PADV2", "MIRROR_PAD", "TILE", "MAX_POOL_2D", "RESIZE_NEAREST_NEIGHBOR",
    "CONCATENATION", "REDUCE_MAX", "REDUCE_MIN",
)  # fmt: skip
"""Operators that commute with the quantizer: they give the same values on codes and on real values."""

OpWriter = Callable[["TosaBuilder", list[NhwcTensor], NhwcTensor, dict[str, Any]], None]
"""The writer of one operator of TFLite. Its arguments are the graph, the inputs, the output and the fields."""


class TosaBuilder:
    """The operators and tensors of one example; constants that no operator reads are not written.

    The file has no real values. The codes of the model's inputs and outputs are the inputs and outputs of the file. An op
    that moves real values, such as a reshape, is written on their codes.

    Args:
        ops: The writer of each operator of TFLite, by its name (`tosa/ops.py`).
    """

    lowering, any_padding, batched, blocks = "TosaLowering", True, False, False
    code_type, bias_type = np.int8, np.int32
    hard_swish_ratio: float | None = None
    curves: Curves = NO_CURVES

    def __init__(self, ops: Mapping[str, OpWriter]) -> None:
        self.ops = ops
        self.count = 0
        self.names = UniqueNames()
        # The keys of the next five are indices of tensors.
        self.real: dict[int, str] = {}  # input of the model -> its name
        self.indices: dict[int, str] = {}  # input of int64 or int32 -> its name
        self.codes_of_real: dict[int, NhwcTensor] = {}  # dequantized tensor -> its codes
        self.moves: dict[int, tuple[str, list[NhwcTensor], dict[str, Any]]] = {}  # real result -> operator, inputs, fields
        self.aliases: dict[int, NhwcTensor] = {}  # quantized tensor -> the tensor that has its codes
        self.inputs: dict[tuple[int, QParams], NhwcTensor] = {}  # (input of the model, qparams) -> its codes
        self.operators: list[Table] = []
        self.tensors: dict[str, Table] = {}
        self.shapes: dict[str, Table] = {}
        self.code_tensors: list[NhwcTensor] = []
        self.file_inputs: list[tuple[tuple[int, QParams], NhwcTensor]] = []  # `inputs` in the model's order
        self.file_indices: list[NhwcTensor] = []  # the inputs of int32 that operators read, in the model's order
        self.file_outputs: list[tuple[str, NhwcTensor]] = []  # (name in the file, codes)

    def tensor(self, name: str, shape: Sequence[int], qparams: QParams | None = None, *, value: Array | None = None,
               varies: int | None = None, dtype: Any = None, **place: Any) -> NhwcTensor:  # fmt: skip
        """Return a new tensor; `value` makes it a constant.

        Raises:
            DeployError: an input whose batch axis is not the first.
        """
        require_input(name, dtype, varies, indices=True)
        result = NhwcTensor(self.count, self._unique(name), tuple(int(n) for n in shape), qparams, value=value, **place)
        self.count += 1
        if dtype is not None:
            (self.real if np.dtype(dtype) == np.float32 else self.indices)[result.index] = name
        if qparams is not None and value is None:
            self.code_tensors.append(result)
        return result

    def _unique(self, name: str) -> str:
        return self.names.fresh(name)

    def integers(self, values: Any, name: str) -> NhwcTensor:
        """Return a constant that is not a tensor of the graph: a shape, axes or pads."""
        return NhwcTensor(-1, name, np.shape(values), value=np.array(values, np.int64))

    def int32_tensor(self, name: str, shape: Sequence[int]) -> NhwcTensor:
        """Return a new tensor of int32."""
        result = NhwcTensor(self.count, self._unique(name), tuple(int(n) for n in shape))
        self.count += 1
        self._declare(result, INT32)
        return result

    def tensor_like(self, tensor: NhwcTensor, name: str, shape: Sequence[int] | None = None) -> NhwcTensor:
        """Return a new tensor with the qparams of another."""
        return self.tensor(f"{tensor.name}.{name}", tensor.shape if shape is None else shape, tensor.qparams)

    def bound_code(self, value: float, qparams: QParams) -> int:
        """Return the code of a bound, rounded half to even."""
        return int(np.rint(np.float32(value) / np.float32(qparams.scale[0]))) + qparams.zero_point[0]

    def operator(
        self, op: str, inputs: Sequence[NhwcTensor], outputs: Sequence[NhwcTensor], options: str = "", **fields: Any
    ) -> None:
        """Write the TOSA operators that compute an operator of TFLite.

        Raises:
            DeployError: TOSA has no such operator, or it would compute on real values.
        """
        tensors, out = list(inputs), outputs[0]
        if op == "DEQUANTIZE":
            self.codes_of_real[out.index] = tensors[0]
        elif op == "QUANTIZE":
            assert out.qparams is not None
            self.aliases[out.index] = self.codes_for(tensors[0], out.qparams)
        elif out.qparams is None and op in _MOVES:
            self.moves[out.index] = op, tensors, fields
        elif op not in self.ops:
            do = "Keep it out of the deployed model, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
            raise DeployError(where=f"tensor {out.name!r}", found=op, wanted="an op of TOSA on integers", do=do)
        elif out.qparams is None or any(t.qparams is None and t.index >= 0 for t in tensors[: 1 if op == "PADV2" else None]):
            raise self._real(out.name, f"{op} of real values")
        else:
            self.ops[op](self, tensors, out, fields)

    def _real(self, name: str, found: str) -> DeployError:
        wanted = "codes on both sides: the profile PRO-INT has integers only"
        do = "Quantize the inputs and the output of the op, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
        return DeployError(where=f"tensor {name!r}", found=found, wanted=wanted, do=do)

    def codes_for(self, real: NhwcTensor, qparams: QParams | None = None) -> NhwcTensor:
        """Return the codes of real values, with the given qparams or, if None, with the qparams of their quantizer.

        The names of new tensors are none of the Q/DQ model's, which may quantize the same values in another way.

        Raises:
            DeployError: the values have no quantizer.
        """
        if real.index in self.codes_of_real:
            codes = self.codes_of_real[real.index]
            if qparams in (None, codes.qparams):
                return codes
            result = self.tensor(f"{real.name}.again", codes.shape, qparams, last=codes.last)
            self.ops["QUANTIZE"](self, [codes], result, {})
            return result
        if real.index in self.moves:
            op, tensors, fields = self.moves[real.index]
            count = len(tensors) if op == "CONCATENATION" else 1
            parts = [self.codes_for(t, qparams) for t in tensors[:count]]
            if any(part.qparams != parts[0].qparams for part in parts):
                raise self._real(real.name, f"{op} of tensors with different scales")
            result = self.tensor(f"{real.name}.moved", real.shape, parts[0].qparams, last=real.last)
            self.ops[op](self, [*parts, *tensors[count:]], result, fields)
            return result
        if real.value is not None and qparams is not None:
            rounded = np.rint(real.value / np.float32(qparams.scale[0])) + qparams.zero_point[0]
            return self.tensor(f"{real.name}.constant", real.shape, qparams, value=np.clip(rounded, -128, 127).astype(np.int8))
        if real.index not in self.real or qparams is None:
            raise self._real(real.name, "real values")
        key = real.index, qparams
        if key not in self.inputs:
            self.inputs[key] = self.tensor(f"{real.name}.given", real.shape, qparams)
        return self.inputs[key]

    def node(self, op: str, inputs: Sequence[NhwcTensor | str], out: NhwcTensor, **attributes: Any) -> None:
        """Write one operator of TOSA. An input that is a name is already in the file."""
        names = [operand if isinstance(operand, str) else self.read(operand) for operand in inputs]
        if out.name not in self.tensors:
            self._declare(out, INT8)
        self.operators.append(operator(op, names, out.name, **attributes))

    def read(self, tensor: NhwcTensor) -> str:
        """Return the name of an operator's input; constants are written when an operator first reads them."""
        while tensor.index in self.aliases:
            tensor = self.aliases[tensor.index]
        if tensor.value is None or tensor.name in self.tensors:
            return tensor.name
        return self._constant(tensor.value, tensor.name)

    def _declare(self, tensor: NhwcTensor, kind: int) -> None:
        self.tensors[tensor.name] = table("Tensor", name=tensor.name, shape=list(tensor.shape), type=kind)

    def _constant(self, value: Array, name: str) -> str:
        data = np.ascontiguousarray(value).tobytes()
        self.tensors[name] = table("Tensor", name=name, shape=list(value.shape), type=_TYPES[value.dtype], data=data)
        self.operators.append(operator("CONST", [], name))
        return name

    def constant(self, value: Any, dtype: Any, name: str = "") -> str:
        """Return the name of a constant. A single number without a name is written once."""
        array = np.atleast_1d(np.asarray(value, dtype))
        if name:
            return self._constant(array, self._unique(name))
        name = f"{array.dtype}.{array[0]}"
        return name if name in self.tensors else self._constant(array, name)

    def shape(self, values: Sequence[int]) -> str:
        """Return the name of a constant shape."""
        numbers = [int(v) for v in values]
        name = "shape." + ".".join(map(str, numbers))
        if name not in self.shapes:
            data = np.array(numbers, "<i8").tobytes()
            self.shapes[name] = table("Shape", name=name, rank=len(numbers), data=data)
            self.operators.append(operator("CONST_SHAPE", [], name))
        return name

    def serialize(self, inputs: Sequence[NhwcTensor], outputs: Sequence[NhwcTensor]) -> bytes:
        """Return the .tosa file.

        Raises:
            DeployError: an output of real values without a quantizer.
        """
        order = [tensor.index for tensor in inputs]
        self.file_inputs = sorted(self.inputs.items(), key=lambda entry: order.index(entry[0][0]))
        read = {name for each in self.operators for name in each["inputs"]}
        self.file_indices = [tensor for tensor in inputs if tensor.index in self.indices and tensor.name in read]
        for tensor in (*(codes for _, codes in self.file_inputs), *self.file_indices):
            self._declare(tensor, INT32 if tensor.qparams is None else INT8)
        input_names = {codes.name for _, codes in self.file_inputs}
        for real in outputs:
            codes = self.codes_for(real)
            name = self.read(codes)
            if name in input_names | {n for n, _ in self.file_outputs}:
                copy = self.tensor_like(codes, "copy")
                self.node("IDENTITY", [name], copy)
                name = copy.name
            self.file_outputs.append((name, codes))
        names = [tensor.name for tensor in (*(codes for _, codes in self.file_inputs), *self.file_indices)]
        block = table(
            "Block", name="main", operators=self.operators, tensors=list(self.tensors.values()),
            shapes=list(self.shapes.values()), inputs=names,
            outputs=[name for name, _ in self.file_outputs],
        )  # fmt: skip
        return serialize_block(block)

    def values_json(self, inputs: Sequence[str]) -> bytes:
        """Return JSON: the qparams of the file's inputs and outputs, and the names, shapes and layouts of tensors of codes.

        Args:
            inputs: The names of the model's inputs, in order.
        """
        file_inputs = [
            {"input": inputs.index(self.real[i]), "scale": q.scale[0], "zero_point": q.zero_point[0], "tensor": tensor.name}
            for (i, q), tensor in self.file_inputs
        ]
        file_outputs = [
            {"scale": tensor.qparams.scale[0], "zero_point": tensor.qparams.zero_point[0], "tensor": name}
            for name, tensor in self.file_outputs
            if tensor.qparams
        ]
        tensors: dict[str, dict[str, Any]] = {}
        for tensor in self.code_tensors:
            name = self.read(tensor)
            if name in self.tensors and tensor.name.removesuffix(".nhwc").endswith(".codes"):
                tensors.setdefault(tensor.name, {"tensor": name, "shape": list(tensor.shape), "last": tensor.last})
        entries: dict[str, Any] = {"inputs": file_inputs, "outputs": file_outputs, "tensors": dict(sorted(tensors.items()))}
        if self.file_indices:
            pairs = [(inputs.index(self.indices[tensor.index]), tensor.name) for tensor in self.file_indices]
            entries["indices"] = [{"input": number, "tensor": name} for number, name in pairs]
        return json.dumps(entries, indent=1).encode()
