"""The data of ExecuTorch's XNNPACK delegate: a header, a graph as a flatbuffer, and the constants."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from qfunc.files.fields import Count, Flag, JsonObject, Keyed, Sizes
from qfunc.files.json_text import damage_error
from qfunc.lowering.flatbuffer import Content, Fields, Schema, Table, parse, serialize, table

_UNARY: Fields = (("input_id", "u32"), ("output_id", "u32"), ("flags", "u32"))
_BINARY: Fields = (("input1_id", "u32"), ("input2_id", "u32"), ("output_id", "u32"), ("flags", "u32"))
_CONCATENATE: Fields = (("axis", "u32"), ("input1_id", "u32"), ("input2_id", "u32"), ("input3_id", "u32"),
                        ("input4_id", "u32"), ("output_id", "u32"), ("flags", "u32"), ("input5_id", "u32"))  # fmt: skip
_PADDING = ("padding_top", "padding_right", "padding_bottom", "padding_left")
_WINDOW = ("kernel_height", "kernel_width", "subsampling_height", "subsampling_width", "dilation_height", "dilation_width",
           "group_input_channels", "group_output_channels", "groups", "adjustment_height", "adjustment_width",
           "input1_id", "filter_id", "bias_id", "output_id", "flags")  # fmt: skip
_POOL_WINDOW = ("pooling_height", "pooling_width", "stride_height", "stride_width", "dilation_height", "dilation_width",
           "input_id", "output_id", "flags")  # fmt: skip
_CONV: Fields = tuple((n, "u32") for n in (*_PADDING, *_WINDOW))
_POOL: Fields = tuple((n, "u32") for n in (*_PADDING, *_POOL_WINDOW))

_NODES: tuple[tuple[str, Fields], ...] = (
    ("XNNAdd", _BINARY),
    ("XNNFullyConnected", tuple((n, "u32") for n in ("input1_id", "filter_id", "bias_id", "output_id", "flags"))),
    ("XNNSoftmax", _UNARY), ("XNNSigmoid", _UNARY),
    ("XNNStaticTranspose", (("num_dims", "u32"), ("perm", "[u32]"), *_UNARY)),
    ("XNNClamp", _UNARY), ("XNNConv2d", _CONV), ("XNNDiv", _BINARY),
    ("XNNStaticResizeBilinear2D", (("new_height", "u32"), ("new_width", "u32"), *_UNARY)),
    ("XNNStaticConstantPad", (("pre_paddings", "[u32]"), ("post_paddings", "[u32]"), ("padding_value", "f32"), *_UNARY)),
    ("XNNAvgPooling2d", _POOL), ("XNNMinimum", _BINARY), ("XNNDepthwiseConv2d", _CONV), ("XNNMaxPooling2d", _POOL),
    ("XNNMultiply", _BINARY), ("XNNSubtract", _BINARY), ("XNNFloor", _UNARY),
    ("XNNConvert", _UNARY), ("XNNGlobalAvgPooling2d", _UNARY),
    ("XNNStaticReshape", (("num_dims", "u32"), ("new_shape", "[u32]"), *_UNARY)),
    ("XNNArgMaxPooling2d", ()), ("XNNSquareRoot", _UNARY), ("XNNCeiling", _UNARY), ("XNNHardswish", _UNARY),
    ("XNNLeakyReLU", (("negative_slope", "f32"), *_UNARY)),
    ("XNNMaximum", _BINARY), ("XNNNegate", _UNARY), ("XNNSquare", _UNARY), ("XNNELU", (("alpha", "f32"), *_UNARY)),
    ("XNNAbs", _UNARY), ("XNNPReLU", _BINARY), ("XNNConcatenate2", _CONCATENATE), ("XNNConcatenate3", _CONCATENATE),
    ("XNNConcatenate4", _CONCATENATE),
    ("XNNStaticSlice", (("num_dims", "u32"), ("offsets", "[u32]"), ("sizes", "[u32]"), *_UNARY)),
    ("XNNScaledDotProductAttention", ()), ("XNNBatchMatrixMultiply", _BINARY), ("XNNConcatenate5", _CONCATENATE),
    ("XNNConvTranspose2d", _CONV), ("XNNReciprocalSquareRoot", _UNARY), ("XNNLog", _UNARY), ("XNNGelu", _UNARY),
    ("XNNTanh", _UNARY), ("XNNExp", _UNARY), ("XNNSin", _UNARY), ("XNNCopy", _UNARY), ("XNNCos", _UNARY),
)  # fmt: skip

_QUANTIZATION = "PerChannelQuant|PerTensorQuant|PerTokenDynamicQuant|PerChannelGroupQuant"

GRAPH: Schema = {
    "XNNGraph": (("version", "str"), ("xnodes", "[XNode]"), ("xvalues", "[XValue]"), ("num_externs", "u32"),
                 ("input_ids", "[u32]"), ("output_ids", "[u32]"), ("constant_buffer", ""), ("mem_buffer_sizes", ""),
                 ("constant_data", "[ConstantDataOffset]")),
    "XNode": (("xnode_union", "|".join(name for name, _ in _NODES)), ("debug_handle", "u32"), ("output_min_max", "MinMax")),
    "MinMax": (("output_min", "f32"), ("output_max", "f32")),
    "XValue": (("xvalue_union", "XNNTensorValue|XNNQuantizedTensorValue"),),
    "XNNTensorValue": (("datatype", "i16"), ("num_dims", "u32"), ("dims", "[u32]"), ("constant_buffer_idx", "u32"),
                       ("external_id", "u32"), ("flags", "u32"), ("id_out", "u32")),
    "XNNQuantizedTensorValue": (("tensor_value", "XNNTensorValue"), ("quant_params", _QUANTIZATION)),
    "PerChannelQuant": (("scale", "[f32]"), ("channel_dim", "i32"), ("scale_buffer_idx", "u32"), ("num_scales", "u32")),
    "PerTensorQuant": (("scale", "f32"), ("zero_point", "i32")),
    "PerTokenDynamicQuant": (("num_nonbatch_dims", "i32"),),
    "PerChannelGroupQuant": (("scale", "[f32]"), ("channel_dim", "i32"), ("group_size", "i32"), ("scale_bf16", ""),
                             ("scale_buffer_idx", "u32"), ("num_scales", "u32")),
    "ConstantDataOffset": (("offset", "u64"), ("size", "u64")),
    **dict(_NODES),
}  # fmt: skip
"""The tables of ExecuTorch's backends/xnnpack/serialization/schema.fbs that a written file has."""

VALUES = Keyed(JsonObject({"value": Count(high=0xFFFFFFFF), "shape": Sizes(), "last": Flag()}))
"""The fields of model.values.json, which `XnnpackBuilder.listed` writes."""

NONE = 0xFFFFFFFF
"""The number of an absent value."""

_HEADER, _ALIGNMENT = struct.Struct("<4x4sHIIIQ"), 16


def delegate(graph: Table, constants: Sequence[bytes | Content]) -> list[bytes | Content]:
    """Return the parts of the delegate's data: header, graph and constants, which the graph numbers from 1."""
    offsets, parts, end = [table("ConstantDataOffset", offset=0, size=0)], list[bytes | Content](), 0
    for constant in constants:
        offsets.append(table("ConstantDataOffset", offset=end, size=len(constant)))
        parts += [constant, bytes(-len(constant) % _ALIGNMENT)]
        end += len(constant) + len(parts[-1])
    body = serialize(GRAPH, Table("XNNGraph", {**graph.fields, "constant_data": offsets}), "XN01")
    start = len(_align(b"\0" * _HEADER.size))
    head = _HEADER.pack(b"XH00", _HEADER.size, start, len(body), start + len(_align(body)), end)
    return [_align(head), _align(body), *parts]


def read(data: bytes) -> tuple[Table, list[bytes]]:
    """Return (graph, constants) from the data that `delegate` wrote."""
    if len(data) < _HEADER.size:
        raise damage_error("model.pte, delegate", "", f"{len(data)} bytes", f"a header of {_HEADER.size}")
    _, _, start, length, constants, _ = _HEADER.unpack(data[: _HEADER.size])
    graph = parse(GRAPH, "XNNGraph", data[start : start + length])
    entries = graph["constant_data"][1:]
    for i, entry in enumerate(entries, 1):
        if (end := constants + entry["offset"] + entry["size"]) > len(data):
            raise damage_error("model.pte, delegate", f"constant_data[{i}]", f"bytes to {end:,}", f"at most {len(data):,}")
    return graph, [data[constants + entry["offset"] : constants + entry["offset"] + entry["size"]] for entry in entries]


def _align(data: bytes) -> bytes:
    padding = -len(data) % _ALIGNMENT
    return data + b"\0" * padding if padding else data
