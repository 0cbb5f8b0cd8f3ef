"""Build an XNNPACK graph from the operators of TFLite: values and nodes of one example."""

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
_FLOAT32, _INT8, _INT32, _INT8_CHANNELS, _INT32_CHANNELS = 1, 3, 5, 6, 7  # xnn_datatype_fp32, qint8, qint32, qcint8, qcint32

OpWriter = Callable[["XnnpackBuilder", list[NhwcTensor], NhwcTensor, dict[str, Any]], None]
"""The writer of one operator of TFLite. Its arguments are the graph, the inputs, the output and the fields."""


class XnnpackBuilder:
    """The values and nodes of one example; tensors that no node reads or writes are left out of the file.

    Args:
        ops: The writer of each operator of TFLite, by its name (`xnnpack/ops.py`).
    """

    lowering, any_padding, batched = "XnnpackLowering", True, False
    code_type, bias_type = np.int8, np.int32
    hard_swish_ratio: float | None = None

    def __init__(self, ops: Mapping[str, OpWriter]) -> None:
        self.ops = ops
        self.tensors: list[NhwcTensor] = []
        self.nodes: list[Table] = []
        self.used_indices: dict[int, None] = {}

    def tensor(self, name: str, shape: Sequence[int], qparams: QParams | None = None, *, value: Array | None = None,
               varies: int | None = None, dtype: Any = None, **place: Any) -> NhwcTensor:  # fmt: skip
        """Return a new tensor; `value` makes it a constant.

        Raises:
            DeployError: an input whose batch axis is not the first, or that is not float32.
        """
        require_input(name, dtype, varies)
        result = NhwcTensor(len(self.tensors), name, tuple(int(n) for n in shape), qparams, value=value, **place)
        self.tensors.append(result)
        return result

    def integers(self, values: Any, name: str) -> NhwcTensor:
        """Return a constant that a node has in its fields, such as a shape."""
        return self.tensor(name, np.shape(values), value=np.array(values, np.int64))

    def operator(
        self, op: str, inputs: Sequence[NhwcTensor], outputs: Sequence[NhwcTensor], options: str = "", **fields: Any
    ) -> None:
        """Write the nodes that compute an operator of TFLite.

        Raises:
            DeployError: XNNPACK does not have the operator.
        """
        if op not in self.ops:
            do = "Keep it out of the deployed model, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
            raise DeployError(where=f"tensor {outputs[0].name!r}", found=op, wanted="an op of XNNPACK", do=do)
        self.ops[op](self, list(inputs), outputs[0], fields)

    def node(self, kind: str, out: NhwcTensor, bounds: tuple[float, float] | None = None, **fields: Any) -> None:
        """Write one node; tensors among its fields become numbers of values."""
        values = {k: self._use(v) if isinstance(v, NhwcTensor) else v for k, v in fields.items()}
        union = table(kind, output_id=self._use(out), **{"flags": 0, **values})
        min_max = None if bounds is None else table("MinMax", output_min=bounds[0], output_max=bounds[1])
        self.nodes.append(table("XNode", xnode_union=union, debug_handle=len(self.nodes), output_min_max=min_max))

    def _use(self, tensor: NhwcTensor) -> int:
        self.used_indices.setdefault(tensor.index)
        return tensor.index

    def serialize(self, inputs: Sequence[NhwcTensor], outputs: Sequence[NhwcTensor]) -> bytes:
        """Return the .pte file."""
        results: list[NhwcTensor] = []
        for tensor in outputs:
            if tensor.value is not None or tensor.index in {t.index for t in (*inputs, *results)}:
                copy = self.tensor(f"{tensor.name}.copy", tensor.shape, tensor.qparams)
                self.node("XNNCopy", copy, input_id=tensor)
                tensor = copy
            results.append(tensor)
        external = {t.index: (i, INPUT) for i, t in enumerate(inputs)}
        external |= {t.index: (len(inputs) + i, OUTPUT) for i, t in enumerate(results)}
        constants: list[bytes] = []
        values = [self._value(self.tensors[i], external.get(i), constants) for i in sorted({*self.used_indices, *external})]
        graph = table(
            "XNNGraph", version="1", xnodes=self.nodes, xvalues=values, num_externs=len(external),
            input_ids=list(range(len(inputs))), output_ids=list(range(len(inputs), len(external))),
        )  # fmt: skip
        return program(delegate(graph, constants), [t.shape for t in inputs], [(t.shape, False) for t in results])

    def _value(self, tensor: NhwcTensor, external: tuple[int, int] | None, constants: list[bytes]) -> Table:
        external_id, flags = external or (NONE, 0)
        buffer_index = 0
        if tensor.value is not None:
            constants.append(np.ascontiguousarray(tensor.value).tobytes())
            buffer_index = len(constants)
        per_channel = len(tensor.qparams.scale) > 1 if tensor.qparams else False
        is_int32 = tensor.value is not None and tensor.value.itemsize > 1
        integers = (_INT8_CHANNELS, _INT32_CHANNELS) if per_channel else (_INT8, _INT32)
        value = table(
            "XNNTensorValue", datatype=integers[is_int32] if tensor.qparams else _FLOAT32, num_dims=len(tensor.shape),
            dims=list(tensor.shape), constant_buffer_idx=buffer_index, external_id=external_id, flags=flags,
            id_out=tensor.index,
        )  # fmt: skip
        if tensor.qparams is None:
            return table("XValue", xvalue_union=value)
        scale, zero = tensor.qparams.scale, tensor.qparams.zero_point
        if per_channel:
            quant_params = table("PerChannelQuant", scale=list(scale), channel_dim=tensor.qparams.axis)
        else:
            quant_params = table("PerTensorQuant", scale=scale[0], zero_point=zero[0])
        return table("XValue", xvalue_union=table("XNNQuantizedTensorValue", tensor_value=value, quant_params=quant_params))

    def values_json(self) -> bytes:
        """Return JSON: the number in the graph, the shape and the layout of each computed tensor of codes."""
        codes = [t for t in self.tensors if t.qparams is not None and t.value is None and t.index in self.used_indices]
        entries = {t.name: {"value": t.index, "shape": list(t.shape), "last": t.last} for t in reversed(codes)}
        return json.dumps(dict(sorted(entries.items())), indent=1).encode()


__all__ = ["INPUT", "OUTPUT", "OpWriter", "XnnpackBuilder"]
