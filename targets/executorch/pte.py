"""A .pte file: an ExecuTorch program with one method that calls one XNNPACK delegate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qfunc.files.json_text import damage_error
from qfunc.lowering.flatbuffer import Content, Schema, Table, parse, serialize, table

_VALUES = "Null|Int|Bool|Double|Tensor|String|IntList|DoubleList|BoolList|TensorList|OptionalTensorList"
_CALLS = "KernelCall|DelegateCall|MoveCall|JumpFalseCall|FreeCall"
PROGRAM: Schema = {
    "Program": (("version", "u32"), ("execution_plan", "[ExecutionPlan]"), ("constant_buffer", "[Buffer]"),
                ("backend_delegate_data", "[Data]"), ("segments", "[Segment]"), ("constant_segment", "Offsets")),
    "ExecutionPlan": (("name", "str"), ("container_meta_type", "Container"), ("values", "[EValue]"), ("inputs", "[i32]"),
                      ("outputs", "[i32]"), ("chains", "[Chain]"), ("operators", "[Operator]"), ("delegates", "[Delegate]"),
                      ("non_const_buffer_sizes", "[i64]")),
    "Container": (("encoded_inp_str", "str"), ("encoded_out_str", "str")),
    "EValue": (("val", _VALUES),),
    "Tensor": (("scalar_type", "i8"), ("storage_offset", "i32"), ("sizes", "[i32]"), ("dim_order", "[u8]"),
               ("requires_grad", "i8"), ("data_buffer_idx", "u32"), ("allocation_info", "Allocation"), ("layout", "i8"),
               ("shape_dynamism", "i8")),
    "Allocation": (("memory_id", "u32"), ("memory_offset_low", "u32"), ("memory_offset_high", "u32")),
    "Chain": (("inputs", "[i32]"), ("outputs", "[i32]"), ("instructions", "[Instruction]")),
    "Instruction": (("instr_args", _CALLS),),
    "DelegateCall": (("delegate_index", "i32"), ("args", "[i32]")),
    "Operator": (("name", "str"), ("overload", "str")),
    "Delegate": (("id", "str"), ("processed", "Reference"), ("compile_specs", "[Spec]")),
    "Spec": (("key", "str"), ("value", "[u8]")),
    "Reference": (("location", "i8"), ("index", "u32")),
    "Buffer": (("storage", "bytes"),),
    "Data": (("data", "bytes"),),
    "Segment": (("offset", "u64"), ("size", "u64")),
    "Offsets": (("segment_index", "u32"), ("offsets", "[u64]")),
}  # fmt: skip
"""The tables of ExecuTorch's schema/program.fbs that a written file has."""

_FLOAT, _CHAR = 6, 1  # ScalarType FLOAT and CHAR


def program(
    delegate: Sequence[bytes | Content], inputs: Sequence[Sequence[int]], outputs: Sequence[tuple[Sequence[int], bool]]
) -> bytes:
    """Return the file.

    Args:
        delegate: The parts of the data of the XNNPACK delegate, from `schema.delegate`.
        inputs: The shapes of the inputs, which are float32.
        outputs: (shape, True if it is codes) of each output.
    """
    tensors = [_tensor(shape, False) for shape in inputs] + [_tensor(*output) for output in outputs]
    ins, outs = list(range(len(inputs))), list(range(len(inputs), len(tensors)))
    call = table("Instruction", instr_args=table("DelegateCall", delegate_index=0, args=ins + outs))
    plan = table(
        "ExecutionPlan", name="forward", values=[table("EValue", val=t) for t in tensors], inputs=ins, outputs=outs,
        container_meta_type=table("Container", encoded_inp_str="", encoded_out_str=""),
        chains=[table("Chain", inputs=ins, outputs=outs, instructions=[call])], operators=[], non_const_buffer_sizes=[0],
        delegates=[table("Delegate", id="XnnpackBackend", processed=table("Reference", location=0, index=0), compile_specs=[])],
    )  # fmt: skip
    root = table(
        "Program", version=0, execution_plan=[plan], constant_segment=table("Offsets", segment_index=0, offsets=[0]),
        backend_delegate_data=[table("Data", data=delegate)], segments=[],
    )  # fmt: skip
    return serialize(PROGRAM, root, "ET12")


def _tensor(shape: Sequence[int], codes: bool) -> Table:
    return table(
        "Tensor", scalar_type=_CHAR if codes else _FLOAT, storage_offset=0, sizes=list(shape),
        dim_order=list(range(len(shape))), requires_grad=0, data_buffer_idx=0, layout=0, shape_dynamism=0,
    )  # fmt: skip


def delegate_of(file: bytes) -> bytes:
    """Return the delegate's data in a file that `program` wrote."""
    entries: Any = parse(PROGRAM, "Program", file)["backend_delegate_data"]
    if len(entries) != 1:
        raise damage_error("model.pte", "backend_delegate_data", f"a list of {len(entries)}", "one delegate's")
    return bytes(entries[0]["data"])
