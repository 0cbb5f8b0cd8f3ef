"""The KPU's tables of a Q/DQ model: one entry for each convolution that reads and returns codes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import torch

from qfunc.errors import DeployError
from qfunc.lowering.qdq.qparams import QParams
from qfunc.lowering.qdq.reader import QdqModel, copies
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.numerics.sums.overflow import range_of_sums
from qfunc.specs import Int
from qfunc.targets.k210.stage_functions import StageNumbers, largest_sums, stage_numbers
from qfunc.targets.k210.stages import KPU

BYTE = Int(8, signed=False)
SEGMENTS = 16
"""The rows of the KPU's table of activations (Kendryte standalone SDK, kpu.h: kpu_activate_table_t)."""


def layers(model: onnx.ModelProto, sites: Iterable[QuantizedTensor]) -> tuple[dict[str, dict[str, Any]], bytes]:
    """Return the entries of a model's convolutions on codes by the names of their nodes, and the bytes of their weights.

    Raises:
        DeployError: a convolution that the KPU does not have, or sums that do not fit its tables.
    """
    source, entries, weights = QdqModel(model), dict[str, dict[str, Any]](), b""
    tensors = {place.real: place.tensor for site in sites for place in site.places}
    for node in model.graph.node:
        if node.op_type != "Conv":
            continue
        x, weight = (source.dequantizer(name) for name in node.input[:2])
        steps, output = source.result(node.output[0])
        if x is None or weight is None or output is None:
            continue  # in float on the CPU
        codes = np.asarray(source.constant(weight, 0))
        entry = _entry(source, node, (source.qparams(x), source.qparams(weight), source.qparams(output)), steps, codes)
        (reader, *_) = source.readers[output.output[0]]
        entries[node.name] = {
            "reads": _tensor(tensors[x.output[0]], source.qparams(x)),
            "returns": _tensor(tensors[reader.output[0]], source.qparams(output)),
            **entry,
            "weights": {"offset": len(weights), "shape": list(codes.shape)},
        }
        weights += codes.astype(np.uint8).tobytes()
    return entries, weights


def _tensor(name: str, qparams: QParams) -> dict[str, Any]:
    return {"tensor": name, "scale": qparams.scale[0], "zero_point": qparams.zero_point[0]}


def _entry(
    source: QdqModel, node: onnx.NodeProto, tensors: tuple[QParams, QParams, QParams], steps: list[onnx.NodeProto], codes: Any
) -> dict[str, Any]:
    x, weight, y = tensors
    (zero_x,), (zero_y,), zero_w, filter_size = x.zero_point, y.zero_point, weight.zero_point[0], codes.shape[2]
    depthwise = _require_layer(source, node, codes)
    low, high = _ends(source, steps, y.scale[0], zero_y)
    numbers = _numbers(source, node, tensors, codes, (zero_y, low, high))
    last = numbers.segments[-1]
    table = [*numbers.segments, *[last] * (SEGMENTS - len(numbers.segments))]
    batch_norm = zip(*(t.expand(codes.shape[0]).tolist() for t in numbers[:3]), strict=True)
    return {
        "filter": filter_size,
        "depthwise": depthwise,
        "strides": list(source.attribute(node, "strides", [1, 1])),
        "pads": list(source.attribute(node, "pads", [0, 0, 0, 0])),
        "pad_value": zero_x,
        "arg_x": -zero_w,
        "shift_x": 0,
        "arg_w": -zero_x,
        "shift_w": 0,
        "arg_add": filter_size**2 * zero_w * zero_x,
        "batch_norm": [list(row) for row in batch_norm],
        "activation": [list(segment) for segment in table],
    }


def _require_layer(source: QdqModel, node: onnx.NodeProto, codes: Any) -> bool:
    # Return True for a depthwise convolution.
    groups = int(source.attribute(node, "group", 1))
    depthwise = groups == codes.shape[0] and codes.shape[1] == 1 and groups > 1
    window, dilations = codes.shape[2:], tuple(source.attribute(node, "dilations", [1, 1]))
    if window not in ((1, 1), (3, 3)) or set(dilations) != {1} or (groups > 1 and not depthwise):
        raise DeployError(
            where=f"op {node.name!r}",
            found=f"a window of {list(window)} with {groups} groups, dilations {list(dilations)} and {codes.shape[0]} outputs",
            wanted="a window of [1, 1] or [3, 3] without dilation, in one group or with one output for each channel",
            do="Leave it to the CPU by edit.skip.",
        )
    return depthwise


def _ends(source: QdqModel, steps: list[onnx.NodeProto], scale: float, zero: int) -> tuple[int, int]:
    # The lowest and the highest code within the activations after a convolution.
    low, high = BYTE.qmin, BYTE.qmax
    for step in steps:
        if copies(step):
            continue
        least, most = (
            None if v is None else int(np.rint(np.float32(v) / np.float32(scale))) + zero for v in source.bounds(step)
        )
        low = low if least is None else min(max(low, least), high)
        high = high if most is None else max(min(high, most), low)
    return low, high


def _numbers(
    source: QdqModel, node: onnx.NodeProto, tensors: tuple[QParams, QParams, QParams], codes: Any, ends: tuple[int, int, int]
) -> StageNumbers:
    x, weight, y = tensors
    scale = float(np.float32(y.scale[0]))
    ratio = torch.tensor(x.scale, dtype=torch.float64) * torch.tensor(weight.scale, dtype=torch.float64) / scale
    bias = source.constant(node, 2)
    offset = torch.zeros((), dtype=torch.float64) if bias is None else torch.tensor(np.asarray(bias)).double() / scale
    centred = torch.tensor(codes.astype(np.float32)) - weight.zero_point[0]
    (zero,) = x.zero_point
    sums = range_of_sums(centred, BYTE.qmin - zero, BYTE.qmax - zero, None, False)
    numbers = stage_numbers(KPU.first, KPU.then, ratio, offset, largest_sums(*sums), ends, (BYTE.qmin, BYTE.qmax))
    if numbers is None:
        raise DeployError(
            where=f"op {node.name!r}",
            found=f"s_x s_w / s_y up to {float(ratio.max()):.4g}",
            wanted="sums and multipliers that fit the KPU's tables",
            do="Calibrate with batches in which the output has its full range.",
        )
    return numbers
