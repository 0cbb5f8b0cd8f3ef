"""The walk through a Q/DQ file: ops on codes by the user's functions, all others in float32 by ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator

from qfunc.errors import VerifyError
from qfunc.lowering.code_functions.operands import Array, Coded, CodeOp
from qfunc.lowering.qdq.reader import QdqModel
from qfunc.lowering.report_fields import read_quantized
from qfunc.numerics.kernels.integer import quantize_codes
from qfunc.numerics.rounding import round_by
from qfunc.specs import Bounds

_MOVES = ("Flatten", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "MaxPool", "Identity")


class Execution:
    """One artifact with the functions of a chip; `tensors` are the names of the tensors of codes.

    Args:
        artifact: What a lowering of Q/DQ models wrote.
        functions: ONNX operator -> function of a `CodeOp` that returns codes.
        bounds: How bounds of activations become codes.
    """

    units = None
    difference = ""

    def __init__(self, artifact: Any, functions: Mapping[str, Callable[[CodeOp], Any]], bounds: Bounds) -> None:
        self.functions, self.bounds = functions, bounds
        self.model = QdqModel(onnx.load_from_string(artifact.files["model.onnx"]))
        self.integer = {str(u["tensor"]) for u in artifact.report["units"] if u["integer"]}
        self.whole = {str(u["tensor"]) for u in artifact.report["units"]} | {i.name for i in self.model.graph.input}
        self.rounding = {f"{t}.codes": str(s["rounding"]) for s in read_quantized(artifact.report) for t in s["tensors"]}
        self.tensors = frozenset(n.output[0] for n in self.model.graph.node if n.op_type == "QuantizeLinear")

    def run(self, inputs: Sequence[Any]) -> tuple[list[Array], dict[str, Array]]:
        """Return (the outputs in float32, tensor of codes -> codes)."""
        values: dict[str, Any] = {**self.model.constants, "": None}
        values |= {i.name: np.asarray(x) for i, x in zip(self.model.graph.input, inputs, strict=True)}
        done: set[str] = set()
        for node in self.model.graph.node:
            if node.output[0] in done:
                continue
            if node.op_type == "QuantizeLinear":
                values[node.output[0]] = self._quantized(node, values)
            elif node.op_type == "DequantizeLinear":
                values[node.output[0]] = _coded(*(values[name] for name in node.input))
            else:
                done |= self._op(node, values)
        return [_real(values[name]) for name in self.model.outputs], {name: values[name] for name in self.tensors}

    def _quantized(self, node: onnx.NodeProto, values: Mapping[str, Any]) -> Array:
        # What the host quantizes, as the scheme says.
        name, scale, zero = node.output[0], *(values[n] for n in node.input[1:3])
        if name.removesuffix(".codes") in self.integer:
            raise _fused(name)
        ends, real = np.iinfo(zero.dtype), torch.from_numpy(np.array(_real(values[node.input[0]]), np.float32))
        qparams = float(scale), int(zero), int(ends.min), int(ends.max)
        return np.asarray(quantize_codes(real, *qparams, self.rounding.get(name, "half_even")).numpy().astype(zero.dtype))

    def _op(self, node: onnx.NodeProto, values: dict[str, Any]) -> set[str]:
        # Compute one op; return the outputs of the nodes after it that are computed with it.
        steps, quantizer = self.model.result(node.output[0])
        last = steps[-1].output[0] if steps else node.output[0]
        given = [values[name] for name in node.input]
        if last not in self.integer:
            real = {name: _real(v) for name, v in zip(node.input, given, strict=True) if name}
            values.update(zip(node.output, ReferenceEvaluator(node).run(None, real), strict=True))
            return set()
        for name, value in zip(node.input, given, strict=True):
            inner = isinstance(value, np.ndarray) and value.dtype.kind == "f" and name not in self.model.constants
            if inner and name not in self.whole:
                raise _fused(node.name)
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if quantizer is None:
            op = CodeOp(node.op_type, node.name, tuple(given), attributes, None)
            values[last] = np.asarray(self._computed(op), np.float32)
            return {s.output[0] for s in steps}
        scale, zero = (values[name] for name in quantizer.input[1:3])
        low, high = self._range(steps, float(scale), int(zero), np.iinfo(zero.dtype))
        op = CodeOp(node.op_type, node.name, tuple(given), attributes, float(scale), int(zero), low, high)
        codes = np.asarray(self._computed(op))
        if codes.size and not low <= codes.min() <= codes.max() <= high:
            found = f"codes from {codes.min():g} to {codes.max():g} of the function for {op.kind!r}"
            raise _error(op.name, found, f"codes in [{low}, {high}]", "Clamp them to op.low and op.high.")
        values[quantizer.output[0]] = codes.astype(zero.dtype)
        return {*(s.output[0] for s in steps), quantizer.output[0]}

    def _computed(self, op: CodeOp) -> Any:
        if op.kind in self.functions:
            return self.functions[op.kind](op)
        if op.kind not in _MOVES:
            known, do = (
                ", ".join(sorted(self.functions)) or "no op",
                f'Add "{op.kind}": a function of a CodeOp that returns codes.',
            )
            raise _error(op.name, f"the op {op.kind!r} on codes", f"a function for it beside those for {known}", do)
        (node,) = (n for n in self.model.graph.node if n.name == op.name)
        given = [np.asarray(v.codes, np.float32) if isinstance(v, Coded) else v for v in op.inputs]
        moved: list[Any] = list(ReferenceEvaluator(node).run(None, dict(zip(node.input, given, strict=True))))
        return moved[0]

    def _range(self, steps: Sequence[onnx.NodeProto], scale: float, zero: int, ends: Any) -> tuple[int, int]:
        low, high = int(ends.min), int(ends.max)
        for step in steps:
            least, most = (None if v is None else self._code(v, scale, zero) for v in self.model.bounds(step))
            low = low if least is None else min(max(low, least), high)
            high = high if most is None else max(min(high, most), low)
        return low, high

    def _code(self, bound: float, scale: float, zero: int) -> int:
        before = zero if self.bounds.zero_point == "before" else 0
        ratio = torch.tensor(bound) / torch.tensor(scale) + before
        return int(round_by(ratio, self.bounds.rounding)) + zero - before


def _coded(codes: Array, scale: Array, zero: Array) -> Coded:
    points = zero.astype(np.int64).ravel()
    several = bool((points != points[0]).any())
    return Coded(codes, scale.astype(np.float64) if scale.ndim else float(scale), points if several else int(points[0]))


def _real(value: Any) -> Any:
    return value.real if isinstance(value, Coded) else value


def _fused(name: str) -> VerifyError:
    do = "Describe it by kernels of single ops, or write a runner that executes the unit."
    return _error(name, "a unit of several ops", "one op, and activations that clamp", do)


def _error(name: str, found: str, wanted: str, do: str) -> VerifyError:
    return VerifyError(where=f"CodesRunner, {name!r}", found=found, wanted=wanted, do=do)
