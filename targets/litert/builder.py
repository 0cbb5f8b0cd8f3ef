"""Build a .tflite flatbuffer: tensors, buffers and operators."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qfunc.errors import DeployError
from qfunc.graph.constants import UniqueNames
from qfunc.lowering.constant_folding import NO_CURVES, Curves
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.qdq.qparams import Array, QParams
from qfunc.targets.litert.constraints import require_exponent
from qfunc.targets.litert.ratios import require_multiplier

_TYPES = {np.dtype(np.float32): "FLOAT32", np.dtype(np.int8): "INT8", np.dtype(np.int16): "INT16",
          np.dtype(np.int32): "INT32", np.dtype(np.int64): "INT64"}  # fmt: skip


_VERSIONS = {
    "CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 4, "ADD": 2, "SUB": 3, "MUL": 2, "AVERAGE_POOL_2D": 2,
    "MAX_POOL_2D": 2, "CONCATENATION": 2, "PAD": 2, "PADV2": 2, "TRANSPOSE": 2, "SOFTMAX": 2, "LOGISTIC": 2, "TANH": 2,
    "DEQUANTIZE": 2, "MEAN": 2, "RESIZE_BILINEAR": 3, "RESIZE_NEAREST_NEIGHBOR": 3, "STRIDED_SLICE": 2, "LEAKY_RELU": 2,
    "MAXIMUM": 2, "MINIMUM": 2, "RELU": 2, "RELU6": 2, "BATCH_MATMUL": 2, "MIRROR_PAD": 2, "SPLIT_V": 2,
    "TRANSPOSE_CONV": 4, "GELU": 2, "GATHER": 2,
}  # fmt: skip
"""The version of each operator that supports int8, if it is not 1 (TFLite, tools/versioning/op_version.cc)."""


_VERSIONS_16 = {
    "CONV_2D": 4, "DEPTHWISE_CONV_2D": 5, "FULLY_CONNECTED": 7, "ADD": 3, "MUL": 4, "AVERAGE_POOL_2D": 3, "MAX_POOL_2D": 3,
    "CONCATENATION": 3, "PAD": 3, "TRANSPOSE": 5, "DEQUANTIZE": 3, "STRIDED_SLICE": 4,
}  # fmt: skip
"""The version of each operator that supports int16, if it is not that of int8 (same source)."""


def schema() -> Any:
    """Return the classes of the flatbuffer.

    Raises:
        DeployError: the package ai-edge-litert, which has them, is not installed.
    """
    if importlib.util.find_spec("ai_edge_litert") is None:
        do = "Install qfunc-torch[litert], or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
        found = "the package ai-edge-litert is not installed"
        raise DeployError(where="TfliteLowering", found=found, wanted="ai-edge-litert 2.3 or later", do=do)
    return importlib.import_module("ai_edge_litert.schema_py_generated")


_ENUMS = {"padding": "Padding", "fusedActivationFunction": "ActivationFunctionType", "mode": "MirrorPadMode",
            **dict.fromkeys(("outType", "outputType", "inDataType", "outDataType"), "TensorType")}  # fmt: skip
"""Field of an operator's options -> the enum that has its values."""


_MULTIPLIED = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
"""Products that XNNPACK takes from the interpreter, and then refuses if their multiplier is too large."""


_PRODUCT_BITS = 15
"""A product of two codes has up to 16 bits; times 2^15 or more it overflows in the kernel, which then wraps."""


class TfliteBuilder:
    """One subgraph, whose tensors and operators are in the order of the calls."""

    lowering, any_padding, batched, blocks = "TfliteLowering", False, True, False
    hard_swish_ratio: float | None = 128.0  # the kernel's 16-bit multiplier is below 1
    curves: Curves = NO_CURVES

    def __init__(self, bits: int = 8) -> None:
        self.schema = schema()
        self.code_type: Any = np.int8 if bits == 8 else np.int16
        self.bias_type: Any = np.int32 if bits == 8 else np.int64
        self.versions = _VERSIONS if bits == 8 else _VERSIONS | _VERSIONS_16
        self.tensors: list[Any] = []
        self.operators: list[Any] = []
        self.buffers: list[Any] = [self.schema.BufferT()]
        self.operator_codes: list[Any] = []
        self.names = UniqueNames()

    def tensor(self, name: str, shape: Sequence[int], qparams: QParams | None = None, *, value: Array | None = None,
               varies: int | None = None, dtype: Any = None, **place: Any) -> NhwcTensor:  # fmt: skip
        """Return a new tensor; `value` makes it a constant.

        Args:
            varies: The axis whose length is the batch's.
            dtype: The dtype of an input; by default that of codes, or float32.
        """
        tensor = self.schema.TensorT()
        unique = self.names.fresh(name)
        tensor.name, tensor.shape, tensor.hasRank, tensor.buffer = unique.encode(), np.array(shape, np.int32), True, 0
        dtype = np.dtype(dtype or (np.float32 if qparams is None else self.code_type)) if value is None else value.dtype
        tensor.type = getattr(self.schema.TensorType, _TYPES[dtype])
        if qparams is not None:
            tensor.quantization = self.schema.QuantizationParametersT()
            tensor.quantization.scale = np.array(qparams.scale, np.float32)
            tensor.quantization.zeroPoint = np.array(qparams.zero_point, np.int64)
            tensor.quantization.quantizedDimension = qparams.axis
        if varies is not None:
            tensor.shapeSignature = np.array([-1 if i == varies else n for i, n in enumerate(shape)], np.int32)
        if value is not None:
            buffer = self.schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
            tensor.buffer = len(self.buffers)
            self.buffers.append(buffer)
        self.tensors.append(tensor)
        return NhwcTensor(len(self.tensors) - 1, unique, tuple(shape), qparams, value=value, **place)

    def integers(self, values: Any, name: str) -> NhwcTensor:
        """Return a constant of int32: shapes, axes, pads."""
        array = np.array(values, np.int32)
        return self.tensor(name, array.shape, value=array)

    def bound_code(self, value: float, qparams: QParams) -> int:
        """Return the code of a bound, rounded half away from zero."""
        steps = float(np.float32(value) / np.float32(qparams.scale[0]))
        return int(math.copysign(math.floor(abs(steps) + 0.5), steps)) + qparams.zero_point[0]

    def operator(
        self, op: str, inputs: Sequence[NhwcTensor], outputs: Sequence[NhwcTensor], options: str = "", **fields: Any
    ) -> None:
        """Write one operator; `options` is the name of its table, `fields` has numbers and names of enum values.

        Raises:
            DeployError: the scales of a product on codes that XNNPACK, LiteRT's default, does not load.
        """
        if op in _MULTIPLIED:
            require_multiplier(inputs[0], inputs[1], outputs[0])
        if op == "SOFTMAX":
            require_exponent(inputs[0])
        elif op == "MUL":
            require_multiplier(inputs[0], inputs[1], outputs[0], _PRODUCT_BITS)
        assert all(t.index >= 0 for t in (*inputs, *outputs)), op  # -1 would be an input that is absent
        operator = self.schema.OperatorT()
        operator.opcodeIndex = self._code(op)
        operator.inputs = np.array([t.index for t in inputs], np.int32)
        operator.outputs = np.array([t.index for t in outputs], np.int32)
        if options:
            operator.builtinOptionsType = getattr(self.schema.BuiltinOptions, options)
            operator.builtinOptions = getattr(self.schema, f"{options}T")()
            for key, value in fields.items():
                number = getattr(getattr(self.schema, _ENUMS[key]), value) if key in _ENUMS else value
                setattr(operator.builtinOptions, key, number)
            if op in ("ADD", "SUB"):  # by default, int16 has scales of powers of two
                operator.builtinOptions.potScaleInt16 = self.code_type == np.int8
        self.operators.append(operator)

    def _code(self, op: str) -> int:
        number, version = getattr(self.schema.BuiltinOperator, op), self.versions.get(op, 1)
        for index, code in enumerate(self.operator_codes):
            if code.builtinCode == number:
                return index
        code = self.schema.OperatorCodeT()
        code.builtinCode, code.deprecatedBuiltinCode, code.version = number, min(number, 127), version
        self.operator_codes.append(code)
        return len(self.operator_codes) - 1

    def serialize(self, inputs: Sequence[NhwcTensor], outputs: Sequence[NhwcTensor]) -> bytes:
        """Return the file."""
        flatbuffers: Any = importlib.import_module("flatbuffers")
        graph, model = self.schema.SubGraphT(), self.schema.ModelT()
        graph.name, graph.tensors, graph.operators = b"main", self.tensors, self.operators
        graph.inputs, graph.outputs = (np.array([t.index for t in tensors], np.int32) for tensors in (inputs, outputs))
        model.version, model.description, model.subgraphs = 3, b"qfunc", [graph]
        model.operatorCodes, model.buffers = self.operator_codes, self.buffers
        builder = flatbuffers.Builder(1 << 16)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())
