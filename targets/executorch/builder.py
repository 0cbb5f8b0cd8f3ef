"""Build an XNNPACK graph from the operators of TFLite: values and nodes of one example."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qfunc.errors import DeployError
from qfunc.lowering.constant_folding import Curves
from qfunc.lowering.flatbuffer import Content, Table, table
from qfunc.lowering.format_checks import require_input
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.qdq.qparams import Array, QParams
from qfunc.targets.executorch import elementary, logistic
from qfunc.targets.executorch.chains import with_short_chains
from qfunc.targets.executorch.pte import program
from qfunc.targets.executorch.schema import NONE, delegate

INPUT, OUTPUT = 1, 2  # XNN_VALUE_FLAG_EXTERNAL_INPUT and _OUTPUT
_FLOAT32, _INT8, _INT32, _INT8_CHANNELS, _INT32_CHANNELS = 1, 3, 5, 6, 7  # xnn_datatype_fp32, qint8, qint32, qcint8, qcint32
_RUN_TIME, _INT4_BLOCKS = 9, 10  # xnn_datatype_qdint8, qbint4
OpWriter = Callable[["XnnpackBuilder", list[NhwcTensor], NhwcTensor, dict[str, Any]], None]
"""The writer of one operator of TFLite. Its arguments are the graph, the inputs, the output and the fields."""


def _of_arrays(curve: Callable[[Tensor], Tensor]) -> Callable[[Array], Array]:
    return lambda x: curve(torch.tensor(x)).numpy()


CURVES: Curves = {
    "Exp": _of_arrays(elementary.exp), "Log": _of_arrays(elementary.log), "Sqrt": _of_arrays(elementary.sqrt),
    "Sin": _of_arrays(elementary.sin), "Cos": _of_arrays(elementary.cos), "Tanh": _of_arrays(elementary.tanh),
    "Sigmoid": _of_arrays(logistic.sigmoid),
}  # fmt: skip
"""Type of node of ONNX -> the curve with which XNNPACK computes ops of constants; a file has their results."""


class XnnpackBuilder:
    """The values and nodes of one example; tensors that no node reads or writes are left out of the file.

    Args:
        ops: The writer of each operator of TFLite, by its name (`xnnpack/ops.py`).
    """

    lowering, any_padding, batched, blocks = "XnnpackLowering", True, False, True
    code_type, bias_type = np.int8, np.int32
    hard_swish_ratio: float | None = None
    curves: Curves = CURVES

    def __init__(self, ops: Mapping[str, OpWriter]) -> None:
        self.ops = ops
        self.tensors: list[NhwcTensor] = []
        self.nodes: list[Table] = []
        self.used_indices: dict[int, None] = {}
        self.run_time: dict[int, NhwcTensor] = {}
        self.shown: list[NhwcTensor] = []

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

    def bound_code(self, value: float, qparams: QParams) -> int:
        """Return the code of a bound, rounded half to even, with the zero point."""
        return int(np.rint(np.float32(value) / np.float32(qparams.scale[0]) + np.float32(qparams.zero_point[0])))

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

    def _copy(self, number: int) -> Table:
        tensor = self.tensors[number]
        copy, rank = self.tensor(f"{tensor.name}.copied", tensor.shape, tensor.qparams), len(tensor.shape)
        # XNNPACK leaves copies and reshapes out.
        self.node("XNNStaticSlice", copy, num_dims=rank, offsets=[0] * rank, sizes=list(tensor.shape), input_id=tensor)
        return self.nodes.pop()

    def _use(self, tensor: NhwcTensor) -> int:
        self.used_indices.setdefault(tensor.index)
        return tensor.index

    def quantized_at_run_time(self, x: NhwcTensor) -> NhwcTensor:
        """Return the codes of a matrix or a batch of matrices, whose scale and zero point XNNPACK computes for each row."""
        found = next((real for real, codes in self.run_time.items() if codes.name == f"{x.name}.run_time"), None)
        if found is None:
            codes = self.tensor(f"{x.name}.run_time", x.shape)
            self.run_time[codes.index] = codes
            self.node("XNNConvert", codes, input_id=x)
            return codes
        return self.run_time[found]

    def serialize(self, inputs: Sequence[NhwcTensor], outputs: Sequence[NhwcTensor]) -> bytes:
        """Return the .pte file."""
        results: list[NhwcTensor] = []
        for tensor in outputs:
            if tensor.value is not None or tensor.index in {t.index for t in (*inputs, *results)}:
                copy = self.tensor(f"{tensor.name}.copy", tensor.shape, tensor.qparams)
                self.node("XNNCopy", copy, input_id=tensor)
                tensor = copy
            results.append(tensor)
        known = {t.index for t in self.tensors if t.value is not None}
        codes = {t.index for t in self.tensors if t.qparams is not None and t.value is None}
        self.nodes = with_short_chains(self.nodes, known, codes, {t.index for t in results}, self._copy)
        external = {t.index: (i, INPUT) for i, t in enumerate(inputs)}
        external |= {t.index: (len(inputs) + i, OUTPUT) for i, t in enumerate(results)}
        inner = (t for t in self.tensors if t.index in self.used_indices and t.index not in external)
        self.shown = (
            [t for t in inner if t.value is None and t.index not in self.run_time and not t.last] if self.run_time else []
        )
        constants: list[Content] = []
        values = [self._value(self.tensors[i], external.get(i), constants) for i in sorted({*self.used_indices, *external})]
        graph = table(
            "XNNGraph", version="1", xnodes=self.nodes, xvalues=values, num_externs=len(external),
            input_ids=list(range(len(inputs))), output_ids=list(range(len(inputs), len(external))),
        )  # fmt: skip
        return program(delegate(graph, constants), [t.shape for t in inputs], [(t.shape, False) for t in results])

    def _value(self, tensor: NhwcTensor, external: tuple[int, int] | None, constants: list[Content]) -> Table:
        external_id, flags = external or (NONE, 0)
        place: dict[str, Any] = {"external_id": external_id, "flags": flags, "id_out": tensor.index}
        shape = {"num_dims": len(tensor.shape), "dims": list(tensor.shape)}
        if tensor.index in self.run_time:
            value = table("XNNTensorValue", datatype=_RUN_TIME, constant_buffer_idx=0, **shape, **place)
            return _quantized(value, table("PerTokenDynamicQuant", num_nonbatch_dims=1))
        if tensor.qparams is not None and tensor.qparams.block is not None:
            return self._in_blocks(tensor, tensor.qparams, constants, shape | place)
        buffer_index = 0
        if tensor.value is not None:
            constants.append(Content(tensor.value.nbytes, np.ascontiguousarray(tensor.value).tobytes))
            buffer_index = len(constants)
        per_channel = len(tensor.qparams.scale) > 1 if tensor.qparams else False
        is_int32 = tensor.value is not None and tensor.value.itemsize > 1
        integers = (_INT8_CHANNELS, _INT32_CHANNELS) if per_channel else (_INT8, _INT32)
        value = table(
            "XNNTensorValue", datatype=integers[is_int32] if tensor.qparams else _FLOAT32, constant_buffer_idx=buffer_index,
            **shape, **place,
        )  # fmt: skip
        if tensor.qparams is None:
            return table("XValue", xvalue_union=value)
        scale, zero = tensor.qparams.scale, tensor.qparams.zero_point
        if per_channel:
            quant_params = table("PerChannelQuant", scale=list(scale), channel_dim=tensor.qparams.axis)
        else:
            quant_params = table("PerTensorQuant", scale=scale[0], zero_point=zero[0])
        return _quantized(value, quant_params)

    def _in_blocks(self, tensor: NhwcTensor, qparams: QParams, constants: list[Content], fields: dict[str, Any]) -> Table:
        # Two codes a byte, low nibble first, each plus 8; a scale of bfloat16 for each block.
        assert tensor.value is not None
        count = len(qparams.scale)
        constants += [
            Content(tensor.value.size // 2, partial(_halves, tensor.value)),
            Content(2 * count, partial(_bfloat16, qparams.scale)),
        ]
        value = table("XNNTensorValue", datatype=_INT4_BLOCKS, constant_buffer_idx=len(constants) - 1, **fields)
        scales = {"scale_buffer_idx": len(constants), "num_scales": count}
        return _quantized(value, table("PerChannelGroupQuant", channel_dim=0, group_size=qparams.block, **scales))

    def values_json(self) -> bytes:
        """Return JSON: the number in the graph, the shape and the layout of each computed tensor of codes.

        A graph with products whose inputs are quantized at run time also has its inner tensors of real values.
        """
        codes = [t for t in self.tensors if t.qparams is not None and t.value is None and t.index in self.used_indices]
        codes += [t for t in self.shown if t.qparams is None]
        entries = {t.name: {"value": t.index, "shape": list(t.shape), "last": t.last} for t in reversed(codes)}
        return json.dumps(dict(sorted(entries.items())), indent=1).encode()


def _halves(codes: Array) -> bytes:
    shifted = codes.astype(np.uint8) + np.uint8(8)
    return bytes((shifted[:, ::2] | shifted[:, 1::2] << 4).tobytes())


def _bfloat16(values: Sequence[float]) -> bytes:
    bits = np.array(values, np.float32).view(np.uint32)
    return bytes((bits >> 16).astype(np.uint16).tobytes())


def _quantized(value: Table, quant_params: Table) -> Table:
    return table("XValue", xvalue_union=table("XNNQuantizedTensorValue", tensor_value=value, quant_params=quant_params))
