"""What ExecuTorch's XNNPACK delegate reads: a header, a graph as a flatbuffer, and the constants."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from qfunc.files.fields import Count, Flag, Keyed, Record, Shape
from qfunc.files.json_text import damaged
from qfunc.lowering.flatbuffer import Fields, Schema, Table, parse, serialize, table

_ONE: Fields = (("input_id", "u32"), ("output_id", "u32"), ("flags", "u32"))
_TWO: Fields = (("input1_id", "u32"), ("input2_id", "u32"), ("output_id", "u32"), ("flags", "u32"))
_JOINED: Fields = (("axis", "u32"), ("input1_id", "u32"), ("input2_id", "u32"), ("input3_id", "u32"), ("input4_id", "u32"),
                   ("output_id", "u32"), ("flags", "u32"), ("input5_id", "u32"))  # fmt: skip
_AROUND = ("padding_top", "padding_right", "padding_bottom", "padding_left")
_WINDOW = ("kernel_height", "kernel_width", "subsampling_height", "subsampling_width", "dilation_height", "dilation_width",
           "group_input_channels", "group_output_channels", "groups", "adjustment_height", "adjustment_width",
           "input1_id", "filter_id", "bias_id", "output_id", "flags")  # fmt: skip
_POOLED = ("pooling_height", "pooling_width", "stride_height", "stride_width", "dilation_height", "dilation_width",
           "input_id", "output_id", "flags")  # fmt: skip
_CONV: Fields = tuple((n, "u32") for n in (*_AROUND, *_WINDOW))
_POOL: Fields = tuple((n, "u32") for n in (*_AROUND, *_POOLED))
_MOVED: Fields = (("input_id", "u32"), ("output_id", "u32"), ("flags", "u32"))

_NODES: tuple[tuple[str, Fields], ...] = (
    ("XNNAdd", _TWO),
    ("XNNFullyConnected", tuple((n, "u32") for n in ("input1_id", "filter_id", "bias_id", "output_id", "flags"))),
    ("XNNSoftmax", _ONE), ("XNNSigmoid", _ONE),
    ("XNNStaticTranspose", (("num_dims", "u32"), ("perm", "[u32]"), *_MOVED)),
    ("XNNClamp", _ONE), ("XNNConv2d", _CONV), ("XNNDiv", _TWO),
    ("XNNStaticResizeBilinear2D", (("new_height", "u32"), ("new_width", "u32"), *_MOVED)),
    ("XNNStaticConstantPad", (("pre_paddings", "[u32]"), ("post_paddings", "[u32]"), ("padding_value", "f32"), *_MOVED)),
    ("XNNAvgPooling2d", _POOL), ("XNNMinimum", _TWO), ("XNNDepthwiseConv2d", _CONV), ("XNNMaxPooling2d", _POOL),
    ("XNNMultiply", _TWO), ("XNNSubtract", _TWO), ("XNNFloor", _ONE), ("XNNConvert", _ONE), ("XNNGlobalAvgPooling2d", _ONE),
    ("XNNStaticReshape", (("num_dims", "u32"), ("new_shape", "[u32]"), *_MOVED)),
    ("XNNArgMaxPooling2d", ()), ("XNNSquareRoot", _ONE), ("XNNCeiling", _ONE), ("XNNHardswish", _ONE),
    ("XNNLeakyReLU", (("negative_slope", "f32"), *_MOVED)),
    ("XNNMaximum", _TWO), ("XNNNegate", _ONE), ("XNNSquare", _ONE), ("XNNELU", (("alpha", "f32"), *_MOVED)),
    ("XNNAbs", _ONE), ("XNNPReLU", _TWO), ("XNNConcatenate2", _JOINED), ("XNNConcatenate3", _JOINED),
    ("XNNConcatenate4", _JOINED),
    ("XNNStaticSlice", (("num_dims", "u32"), ("offsets", "[u32]"), ("sizes", "[u32]"), *_MOVED)),
    ("XNNScaledDotProductAttention", ()), ("XNNBatchMatrixMultiply", _TWO), ("XNNConcatenate5", _JOINED),
    ("XNNConvTranspose2d", _CONV), ("XNNReciprocalSquareRoot", _ONE), ("XNNLog", _ONE), ("XNNGelu", _ONE),
    ("XNNTanh", _ONE), ("XNNExp", _ONE), ("XNNSin", _ONE), ("XNNCopy", _ONE), ("XNNCos", _ONE),
)  # fmt: skip

GRAPH: Schema = {
    "XNNGraph": (("version", "str"), ("xnodes", "[XNode]"), ("xvalues", "[XValue]"), ("num_externs", "u32"),
                 ("input_ids", "[u32]"), ("output_ids", "[u32]"), ("constant_buffer", ""), ("mem_buffer_sizes", ""),
                 ("constant_data", "[ConstantDataOffset]")),
    "XNode": (("xnode_union", "|".join(name for name, _ in _NODES)), ("debug_handle", "u32"), ("output_min_max", "MinMax")),
    "MinMax": (("output_min", "f32"), ("output_max", "f32")),
    "XValue": (("xvalue_union", "XNNTensorValue|XNNQuantizedTensorValue"),),
    "XNNTensorValue": (("datatype", "i16"), ("num_dims", "u32"), ("dims", "[u32]"), ("constant_buffer_idx", "u32"),
                       ("external_id", "u32"), ("flags", "u32"), ("id_out", "u32")),
    "XNNQuantizedTensorValue": (("tensor_value", "XNNTensorValue"), ("quant_params", "PerChannelQuant|PerTensorQuant")),
    "PerChannelQuant": (("scale", "[f32]"), ("channel_dim", "i32"), ("scale_buffer_idx", "u32"), ("num_scales", "u32")),
    "PerTensorQuant": (("scale", "f32"), ("zero_point", "i32")),
    "ConstantDataOffset": (("offset", "u64"), ("size", "u64")),
    **dict(_NODES),
}  # fmt: skip
"""Tables of ExecuTorch's backends/xnnpack/serialization/schema.fbs, as far as they are written here."""

VALUES = Keyed(Record({"value": Count(high=0xFFFFFFFF), "shape": Shape(), "last": Flag()}))
"""The fields of model.values.json, which `XnnpackBuilder.listed` writes."""

NONE = 0xFFFFFFFF
"""The number of a value that is not there."""

_HEADER, _STEP = struct.Struct("<4x4sHIIIQ"), 16


def delegate(graph: Table, constants: Sequence[bytes]) -> bytes:
    """What the delegate reads: the graph, whose constants are numbered from 1 on."""
    offsets, data = [table("ConstantDataOffset", offset=0, size=0)], b""
    for constant in constants:
        offsets.append(table("ConstantDataOffset", offset=len(data), size=len(constant)))
        data += _whole(constant)
    body = serialize(GRAPH, Table("XNNGraph", {**graph.fields, "constant_data": offsets}), "XN01")
    start = len(_whole(b"\0" * _HEADER.size))
    head = _HEADER.pack(b"XH00", _HEADER.size, start, len(body), start + len(_whole(body)), len(data))
    return _whole(head) + _whole(body) + data


def read(data: bytes) -> tuple[Table, list[bytes]]:
    """Return (the graph, its constants) of what `delegate` wrote."""
    if len(data) < _HEADER.size:
        raise damaged("model.pte, delegate", "", f"{len(data)} bytes", f"a header of {_HEADER.size}")
    _, _, start, length, constants, _ = _HEADER.unpack(data[: _HEADER.size])
    graph = parse(GRAPH, "XNNGraph", data[start : start + length])
    places = graph["constant_data"][1:]
    for i, place in enumerate(places, 1):
        if constants + place["offset"] + place["size"] > len(data):
            found = f"bytes to {constants + place['offset'] + place['size']:,}"
            raise damaged("model.pte, delegate", f"constant_data[{i}]", found, f"at most {len(data):,}")
    return graph, [data[constants + p["offset"] : constants + p["offset"] + p["size"]] for p in places]


def _whole(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _STEP)


__all__ = ["GRAPH", "NONE", "VALUES", "delegate", "read"]
