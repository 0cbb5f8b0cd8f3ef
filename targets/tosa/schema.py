"""The flatbuffer schema of a .tosa file: one block of operators, which refer to tensors by name."""

from __future__ import annotations

from collections.abc import Sequence

from qfunc.files.fields import Count, Flag, JsonObject, Keyed, Kind, Many, Number, Sizes, Text
from qfunc.files.json_text import damage_error
from qfunc.lowering.flatbuffer import Fields, Schema, Table, parse, serialize, table

OPS = (
    "ARGMAX", "AVG_POOL2D", "CONV2D", "CONV3D", "DEPTHWISE_CONV2D", "FFT2D", "MATMUL", "MAX_POOL2D", "RFFT2D",
    "TRANSPOSE_CONV2D", "CLAMP", "ERF", "SIGMOID", "TANH", "ADD", "ARITHMETIC_RIGHT_SHIFT", "BITWISE_AND", "BITWISE_OR",
    "BITWISE_XOR", "INTDIV", "LOGICAL_AND", "LOGICAL_LEFT_SHIFT", "LOGICAL_RIGHT_SHIFT", "LOGICAL_OR", "LOGICAL_XOR",
    "MAXIMUM", "MINIMUM", "MUL", "POW", "SUB", "TABLE", "ABS", "BITWISE_NOT", "CEIL", "CLZ", "COS", "EXP", "FLOOR", "LOG",
    "LOGICAL_NOT", "NEGATE", "RECIPROCAL", "RSQRT", "SIN", "SELECT", "EQUAL", "GREATER", "GREATER_EQUAL", "REDUCE_ALL",
    "REDUCE_ANY", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PRODUCT", "REDUCE_SUM", "CONCAT", "PAD", "RESHAPE", "REVERSE", "SLICE",
    "TILE", "TRANSPOSE", "GATHER", "SCATTER", "RESIZE", "CAST", "RESCALE", "CONST", "IDENTITY", "CUSTOM", "COND_IF",
    "WHILE_LOOP", "VARIABLE", "VARIABLE_WRITE", "VARIABLE_READ", "CONST_SHAPE",
)  # fmt: skip
"""The operators in the order of their numbers, from 1. The table of an operator's attributes has the operator's name."""

INT8, INT32 = 3, 5  # DType
SINGLE_ROUND, PROPAGATE, NEAREST, BILINEAR = 1, 1, 1, 2  # RoundingMode, NanPropagationMode, ResizeMode

_WINDOW: Fields = (("pad", "[i32]"), ("stride", "[i32]"), ("dilation", "[i32]"), ("local_bound", "u8"), ("acc_type", "u32"))
_AXIS: Fields = (("axis", "i32"),)
_ATTRIBUTES: dict[str, Fields] = {
    "AVG_POOL2D": (("kernel", "[i32]"), ("stride", "[i32]"), ("pad", "[i32]"), ("acc_type", "u32")),
    "CONV2D": _WINDOW, "DEPTHWISE_CONV2D": _WINDOW,
    "MAX_POOL2D": (("kernel", "[i32]"), ("stride", "[i32]"), ("pad", "[i32]"), ("nan_mode", "u32")),
    "TRANSPOSE_CONV2D": (("out_pad", "[i32]"), ("stride", "[i32]"), ("local_bound", "u8"), ("acc_type", "u32")),
    "CLAMP": (("min_val", "bytes"), ("max_val", "bytes"), ("nan_mode", "u32")),
    **dict.fromkeys(("REDUCE_MAX", "REDUCE_MIN"), (*_AXIS, ("nan_mode", "u32"))),
    **dict.fromkeys(("MAXIMUM", "MINIMUM"), (("nan_mode", "u32"),)),
    "ARITHMETIC_RIGHT_SHIFT": (("round", "u8"),),
    "REDUCE_SUM": _AXIS, "CONCAT": _AXIS, "REVERSE": _AXIS, "TRANSPOSE": (("perms", "[i32]"),), "RESIZE": (("mode", "u32"),),
    "RESCALE": (("scale32", "u8"), ("rounding_mode", "u32"), ("per_channel", "u8"), ("input_unsigned", "u8"),
                ("output_unsigned", "u8")),
}  # fmt: skip

GRAPH: Schema = {
    "TosaGraph": (("version", "Version"), ("regions", "[Region]")),
    "Version": (("major", "i32"), ("minor", "i32"), ("patch", "i32"), ("draft", "u8")),
    "Region": (("name", "str"), ("blocks", "[Block]")),
    "Block": (("name", "str"), ("operators", "[Operator]"), ("tensors", "[Tensor]"), ("inputs", "[str]"), ("outputs", "[str]"),
              ("shapes", "[Shape]")),
    "Operator": (("op", "u32"), ("attribute", "|".join(OPS)), ("inputs", "[str]"), ("outputs", "[str]")),
    "Tensor": (("name", "str"), ("shape", "[i32]"), ("type", "u32"), ("data", "bytes"), ("variable", "u8"),
               ("is_unranked", "u8"), ("variable_name", "str")),
    "Shape": (("name", "str"), ("rank", "u32"), ("data", "bytes")),
    **{op: _ATTRIBUTES.get(op, ()) for op in OPS},
}  # fmt: skip
"""The tables of the schema tosa.fbs that a written file has."""


_END: dict[str, Kind] = {"scale": Number(), "zero_point": Count(-(1 << 31), 1 << 31), "tensor": Text()}
VALUES = JsonObject({
    "inputs": Many(JsonObject({"input": Count(), **_END})), "outputs": Many(JsonObject(_END)),
    "tensors": Keyed(JsonObject({"tensor": Text(), "shape": Sizes(), "last": Flag()})),
}, {"indices": Many(JsonObject({"input": Count(), "tensor": Text()}))})  # fmt: skip
"""The fields of model.values.json, which `TosaBuilder.values_json` writes."""


def operator(op: str, inputs: Sequence[str], output: str, **attributes: object) -> Table:
    """Return one operator with one output."""
    return table(
        "Operator", op=OPS.index(op) + 1, attribute=table(op, **attributes), inputs=list(inputs), outputs=[output]
    )  # fmt: skip


def serialize_block(block: Table) -> bytes:
    """Return the TOSA 1.0 file of one block."""
    version = table("Version", major=1, minor=0, patch=0, draft=0)
    region = table("Region", name="main", blocks=[block])
    return serialize(GRAPH, table("TosaGraph", version=version, regions=[region]), "TOSA")


def block_of(file: bytes) -> Table:
    """Return the block of a file that `serialize_block` wrote."""
    regions = parse(GRAPH, "TosaGraph", file)["regions"]
    blocks: list[Table] = regions[0]["blocks"] if len(regions) == 1 else []
    if len(blocks) != 1:
        raise damage_error("model.tosa", "regions", f"{len(regions)} regions with {len(blocks)} blocks", "one block")
    return blocks[0]
