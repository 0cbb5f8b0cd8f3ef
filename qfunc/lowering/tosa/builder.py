"""A TOSA graph under construction, as a file of TFLite's operators: integers only, of one example."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qfunc.errors import DeployError
from qfunc.graph.unique_names import UniqueNames
from qfunc.lowering.flatbuffer import Table, table
from qfunc.lowering.format_checks import require_input
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.qdq_reader import Array, QParams
from qfunc.lowering.tosa.schema import INT8, INT32, operator, serialize_block

_TYPES = {np.dtype(np.int8): INT8, np.dtype(np.int32): INT32}


_MOVES = (
    "RESHAPE", "TRANSPOSE", "STRIDED_SLICE", "PAD", "PADV2", "MIRROR_PAD", "TILE", "MAX_POOL_2D", "RESIZE_NEAREST_NEIGHBOR",
)  # fmt: skip
"""Operators that compute the same on codes before a quantizer and on real values behind it."""

OpWriter = Callable[["TosaBuilder", list[NhwcTensor], NhwcTensor, dict[str, Any]], None]
"""A function that writes one operator of TFLite into the graph: graph, inputs, output, fields."""


class TosaBuilder:
    """Operators and tensors of one example; constants that no operator reads are not written.

    Real values stand outside: what quantizes an input of the model makes an input of the file, what an output stands for
    is an output of the file, and a move of real values is one of the codes behind or before it.

    Args:
        ops: By the name of an operator of TFLite, the function that writes it (`tosa/ops.py`).
    """

    lowering, any_padding = "TosaLowering", True
    hard_swish_ratio: float | None = None

    def __init__(self, ops: Mapping[str, OpWriter]) -> None:
        self.ops = ops
        self.count = 0
        self.names = UniqueNames()
        self.real: dict[int, str] = {}  # the inputs of the model
        self.stands: dict[int, NhwcTensor] = {}  # by a tensor of real values: the codes that stand for them
        self.moved: dict[int, tuple[str, list[NhwcTensor], dict[str, Any]]] = {}  # by a tensor of real values: how it was moved
        self.same: dict[int, NhwcTensor] = {}  # by a tensor of codes: another that it is
        self.inputs: dict[tuple[int, QParams], NhwcTensor] = {}
        self.operators: list[Table] = []
        self.tensors: dict[str, Table] = {}
        self.shapes: dict[str, Table] = {}
        self.codes: list[NhwcTensor] = []
        self.given: list[tuple[tuple[int, QParams], NhwcTensor]] = []  # the inputs of the file, as `inputs` has them
        self.made: list[tuple[str, NhwcTensor]] = []  # its outputs

    def tensor(self, name: str, shape: Sequence[int], qparams: QParams | None = None, *, value: Array | None = None,
               varies: int | None = None, dtype: Any = None, **place: Any) -> NhwcTensor:  # fmt: skip
        """Return a new tensor; `value` makes it a constant.

        Raises:
            DeployError: an input whose batch axis is not the first, or that is not float32.
        """
        require_input(name, dtype, varies)
        made = NhwcTensor(self.count, self._unique(name), tuple(int(n) for n in shape), qparams, value=value, **place)
        self.count += 1
        if dtype is not None:
            self.real[made.index] = name
        if qparams is not None and value is None:
            self.codes.append(made)
        return made

    def _unique(self, name: str) -> str:
        return self.names.fresh(name)

    def integers(self, values: Any, name: str) -> NhwcTensor:
        """Return a constant that is no tensor of the graph: shapes, axes, pads."""
        return NhwcTensor(-1, name, np.shape(values), value=np.array(values, np.int64))

    def wide(self, name: str, shape: Sequence[int]) -> NhwcTensor:
        """Return a new tensor of int32."""
        made = NhwcTensor(self.count, self._unique(name), tuple(int(n) for n in shape))
        self.count += 1
        self._declare(made, INT32)
        return made

    def inner(self, held: NhwcTensor, name: str, shape: Sequence[int] | None = None) -> NhwcTensor:
        """Return a new tensor with the qparams of another."""
        return self.tensor(f"{held.name}.{name}", held.shape if shape is None else shape, held.qparams)

    def operator(
        self, op: str, inputs: Sequence[NhwcTensor], outputs: Sequence[NhwcTensor], options: str = "", **fields: Any
    ) -> None:
        """What does the same as an operator of TFLite.

        Raises:
            DeployError: TOSA has no such thing, or it computes with real values.
        """
        given, out = list(inputs), outputs[0]
        if op == "DEQUANTIZE":
            self.stands[out.index] = given[0]
        elif op == "QUANTIZE":
            assert out.qparams is not None
            self.same[out.index] = self.coded(given[0], out.qparams)
        elif out.qparams is None and op in _MOVES:
            self.moved[out.index] = op, given, fields
        elif op not in self.ops:
            do = "Keep it out of the deployed model, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
            raise DeployError(where=f"tensor {out.name!r}", found=op, wanted="an op of TOSA on integers", do=do)
        elif out.qparams is None or any(h.qparams is None and h.index >= 0 for h in given[: 1 if op == "PADV2" else None]):
            raise self._real(out.name, f"{op} of real values")
        else:
            self.ops[op](self, given, out, fields)

    def _real(self, name: str, found: str) -> DeployError:
        wanted = "codes on both sides: the profile PRO-INT has integers only"
        do = "Let its quantizers stand right around it, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
        return DeployError(where=f"tensor {name!r}", found=found, wanted=wanted, do=do)

    def coded(self, held: NhwcTensor, qparams: QParams | None = None) -> NhwcTensor:
        """Return the codes of real values, with those qparams or with those that they already have.

        Raises:
            DeployError: they are computed from real values.
        """
        if held.index in self.stands:
            found = self.stands[held.index]
            if qparams in (None, found.qparams):
                return found
            made = self.tensor(f"{held.name}.again", found.shape, qparams, last=found.last)
            self.ops["QUANTIZE"](self, [found], made, {})
            return made
        if held.index in self.moved:
            op, given, fields = self.moved[held.index]
            first = self.coded(given[0], qparams)
            made = self.tensor(f"{held.name}.codes", held.shape, first.qparams, last=held.last)
            self.ops[op](self, [first, *given[1:]], made, fields)
            return made
        if held.index not in self.real or qparams is None:
            raise self._real(held.name, "real values")
        key = held.index, qparams
        if key not in self.inputs:
            self.inputs[key] = self.tensor(f"{held.name}.codes", held.shape, qparams)
        return self.inputs[key]

    def node(self, op: str, inputs: Sequence[NhwcTensor | str], out: NhwcTensor, **attributes: Any) -> None:
        """One operator of TOSA; what is given by its name is written already."""
        read = [held if isinstance(held, str) else self.read(held) for held in inputs]
        if out.name not in self.tensors:
            self._declare(out, INT8)
        self.operators.append(operator(op, read, out.name, **attributes))

    def read(self, held: NhwcTensor) -> str:
        """Return the name of a tensor that an operator reads; constants are written when they are first read."""
        while held.index in self.same:
            held = self.same[held.index]
        if held.value is None or held.name in self.tensors:
            return held.name
        return self._constant(held.value, held.name)

    def _declare(self, held: NhwcTensor, kind: int) -> None:
        self.tensors[held.name] = table("Tensor", name=held.name, shape=list(held.shape), type=kind)

    def _constant(self, value: Array, name: str) -> str:
        data = np.ascontiguousarray(value).tobytes()
        self.tensors[name] = table("Tensor", name=name, shape=list(value.shape), type=_TYPES[value.dtype], data=data)
        self.operators.append(operator("CONST", [], name))
        return name

    def constant(self, value: Any, dtype: Any, name: str = "") -> str:
        """Return the name of a constant; those of one number without a name are written once."""
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

    def packed(self, inputs: Sequence[NhwcTensor], outputs: Sequence[NhwcTensor]) -> bytes:
        """Return the .tosa file.

        Raises:
            DeployError: an output of real values that no codes stand for.
        """
        order = [t.index for t in inputs]
        self.given = sorted(self.inputs.items(), key=lambda entry: order.index(entry[0][0]))
        for _, held in self.given:
            self._declare(held, INT8)
        first = {held.name for _, held in self.given}
        for real in outputs:
            held = self.coded(real)
            name = self.read(held)
            if name in first | {n for n, _ in self.made}:
                copy = self.inner(held, "copy")
                self.node("IDENTITY", [name], copy)
                name = copy.name
            self.made.append((name, held))
        block = table(
            "Block", name="main", operators=self.operators, tensors=list(self.tensors.values()),
            shapes=list(self.shapes.values()), inputs=[h.name for _, h in self.given], outputs=[n for n, _ in self.made],
        )  # fmt: skip
        return serialize_block(block)

    def listed(self, inputs: Sequence[str]) -> bytes:
        """What the file does not say: what codes of its inputs and outputs stand for, which tensor is which.

        Args:
            inputs: The names of the model's inputs, in order.
        """
        ends = [
            {"input": inputs.index(self.real[index]), "scale": q.scale[0], "zero_point": q.zero_point[0], "tensor": held.name}
            for (index, q), held in self.given
        ]
        last = [{"scale": h.qparams.scale[0], "zero_point": h.qparams.zero_point[0], "tensor": n}
                for n, h in self.made if h.qparams]  # fmt: skip
        entries: dict[str, dict[str, Any]] = {}
        for held in self.codes:
            name = self.read(held)
            if name in self.tensors and held.name.removesuffix(".nhwc").endswith(".codes"):
                entries.setdefault(held.name, {"tensor": name, "shape": list(held.shape), "last": held.last})
        return json.dumps({"inputs": ends, "outputs": last, "tensors": dict(sorted(entries.items()))}, indent=1).encode()


__all__ = ["OpWriter", "TosaBuilder"]
