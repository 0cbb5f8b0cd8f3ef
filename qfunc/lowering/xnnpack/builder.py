"""XNNPACK's graph under construction, as a file of TFLite's operators: values and nodes, of one example."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qfunc.errors import DeployError
from qfunc.lowering.flatbuffer import Table, table
from qfunc.lowering.format_checks import require_input
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.qdq_reader import Array, QParams
from qfunc.lowering.xnnpack.pte import program
from qfunc.lowering.xnnpack.schema import NONE, delegate

INPUT, OUTPUT = 1, 2  # XNN_VALUE_FLAG_EXTERNAL_INPUT and _OUTPUT
_REAL, _CODES, _LONG, _CODES_EACH, _LONG_EACH = 1, 3, 5, 6, 7  # xnn_datatype_fp32, qint8, qint32, qcint8, qcint32

OpWriter = Callable[["XnnpackBuilder", list[NhwcTensor], NhwcTensor, dict[str, Any]], None]
"""A function that writes one operator of TFLite into the graph: graph, inputs, output, fields."""


class XnnpackBuilder:
    """Values and nodes of one example; what the nodes do not read is not written.

    Args:
        ops: By the name of an operator of TFLite, the function that writes it (`xnnpack/ops.py`).
    """

    lowering, any_padding = "XnnpackLowering", True
    hard_swish_ratio: float | None = None

    def __init__(self, ops: Mapping[str, OpWriter]) -> None:
        self.ops = ops
        self.held: list[NhwcTensor] = []
        self.nodes: list[Table] = []
        self.used: dict[int, None] = {}

    def tensor(self, name: str, shape: Sequence[int], qparams: QParams | None = None, *, value: Array | None = None,
               varies: int | None = None, dtype: Any = None, **place: Any) -> NhwcTensor:  # fmt: skip
        """Return a new tensor; `value` makes it a constant.

        Raises:
            DeployError: an input whose batch axis is not the first, or that is not float32.
        """
        require_input(name, dtype, varies)
        made = NhwcTensor(len(self.held), name, tuple(int(n) for n in shape), qparams, value=value, **place)
        self.held.append(made)
        return made

    def integers(self, values: Any, name: str) -> NhwcTensor:
        """Return a constant that a node holds in its fields."""
        return self.tensor(name, np.shape(values), value=np.array(values, np.int64))

    def operator(
        self, op: str, inputs: Sequence[NhwcTensor], outputs: Sequence[NhwcTensor], options: str = "", **fields: Any
    ) -> None:
        """The nodes that do what an operator of TFLite does.

        Raises:
            DeployError: XNNPACK has none.
        """
        if op not in self.ops:
            do = "Keep it out of the deployed model, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
            raise DeployError(where=f"tensor {outputs[0].name!r}", found=op, wanted="an op of XNNPACK", do=do)
        self.ops[op](self, list(inputs), outputs[0], fields)

    def node(self, kind: str, out: NhwcTensor, bounds: tuple[float, float] | None = None, **fields: Any) -> None:
        """One node; the tensors among its fields are its values."""
        values = {k: self._read(v) if isinstance(v, NhwcTensor) else v for k, v in fields.items()}
        union = table(kind, output_id=self._read(out), **{"flags": 0, **values})
        limits = None if bounds is None else table("MinMax", output_min=bounds[0], output_max=bounds[1])
        self.nodes.append(table("XNode", xnode_union=union, debug_handle=len(self.nodes), output_min_max=limits))

    def _read(self, held: NhwcTensor) -> int:
        self.used.setdefault(held.index)
        return held.index

    def serialize(self, inputs: Sequence[NhwcTensor], outputs: Sequence[NhwcTensor]) -> bytes:
        """Return the .pte file."""
        last: list[NhwcTensor] = []
        for held in outputs:
            if held.value is not None or held.index in {t.index for t in (*inputs, *last)}:
                copy = self.tensor(f"{held.name}.copy", held.shape, held.qparams)
                self.node("XNNCopy", copy, input_id=held)
                held = copy
            last.append(held)
        external = {t.index: (i, INPUT) for i, t in enumerate(inputs)}
        external |= {t.index: (len(inputs) + i, OUTPUT) for i, t in enumerate(last)}
        constants: list[bytes] = []
        values = [self._value(self.held[i], external.get(i), constants) for i in sorted({*self.used, *external})]
        graph = table(
            "XNNGraph", version="1", xnodes=self.nodes, xvalues=values, num_externs=len(external),
            input_ids=list(range(len(inputs))), output_ids=list(range(len(inputs), len(external))),
        )  # fmt: skip
        return program(delegate(graph, constants), [t.shape for t in inputs], [(t.shape, False) for t in last])

    def _value(self, held: NhwcTensor, external: tuple[int, int] | None, constants: list[bytes]) -> Table:
        number, flags = external or (NONE, 0)
        place = 0
        if held.value is not None:
            constants.append(np.ascontiguousarray(held.value).tobytes())
            place = len(constants)
        each, long = len(held.qparams.scale) > 1 if held.qparams else False, held.value is not None and held.value.itemsize > 1
        kind = _REAL if held.qparams is None else ((_CODES, _LONG), (_CODES_EACH, _LONG_EACH))[each][long]
        value = table(
            "XNNTensorValue", datatype=kind, num_dims=len(held.shape), dims=list(held.shape), constant_buffer_idx=place,
            external_id=number, flags=flags, id_out=held.index,
        )  # fmt: skip
        if held.qparams is None:
            return table("XValue", xvalue_union=value)
        scale, zero = held.qparams.scale, held.qparams.zero_point
        if each:
            shared = table("PerChannelQuant", scale=list(scale), channel_dim=held.qparams.axis)
        else:
            shared = table("PerTensorQuant", scale=scale[0], zero_point=zero[0])
        return table("XValue", xvalue_union=table("XNNQuantizedTensorValue", tensor_value=value, quant_params=shared))

    def values_json(self) -> bytes:
        """Return JSON: for each computed tensor of codes its number in the graph, its shape and whether channels are last."""
        shown = [t for t in self.held if t.qparams is not None and t.value is None and t.index in self.used]
        entries = {t.name: {"value": t.index, "shape": list(t.shape), "last": t.last} for t in reversed(shown)}
        return json.dumps(dict(sorted(entries.items())), indent=1).encode()


__all__ = ["INPUT", "OUTPUT", "OpWriter", "XnnpackBuilder"]
