"""The fields of qfunc.json, in artifacts and in saved models, and how it is read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch

from qfunc import specs
from qfunc.errors import SpecError
from qfunc.files.bit_planes import PLANES
from qfunc.files.fields import (
    Count,
    Flag,
    JsonObject,
    Keyed,
    Kind,
    Many,
    Nullable,
    Number,
    Object,
    Sizes,
    Text,
    Word,
    describe,
    require,
)
from qfunc.files.json_text import damage_error, parse
from qfunc.lowering.artifact import REPORT
from qfunc.specs import Target
from qfunc.specs._values import short

DTYPES = {str(d): d for d in vars(torch).values() if isinstance(d, torch.dtype) and (d.is_floating_point or "int" in str(d))}
DTYPES["torch.bool"] = torch.bool
"""The dtypes of inputs by name."""

INPUT = JsonObject({"shape": Sizes(), "dtype": Word(tuple(sorted(DTYPES)))}, {"other": Sizes()})
"""The fields of `graph.record.TensorInfo`."""

TENSOR = JsonObject({
    "name": Text(), "role": Text(), "producer": Text(), "readers": Many(Text()), "rounding": Text(), "format": Text(),
    "scale": Nullable(Many(Number(), least=1)), "zero_point": Nullable(Many(Count(-(1 << 63)), least=1)),
    "axis": Nullable(Count(-64, 64)),
    "low": Count(-(1 << 63)), "high": Count(-(1 << 63)), "tensors": Many(Text()),
})  # fmt: skip
"""The fields that `lowering.quantized_tensor.plain` writes."""

UNIT = JsonObject({"path": Text(), "tensor": Text(), "kind": Text(), "integer": Flag(), "reason": Text()})
"""The fields that `placement.partition.summary` writes."""

ARTIFACT = JsonObject(
    {"target": Object(), "inputs": Many(INPUT)},
    {"versions": Keyed(Text()), "tensors": Many(TENSOR), "units": Many(UNIT), "files": Keyed(Text())},
)
"""The fields that `deploy` writes."""

SAVED_MODEL = JsonObject(
    {"target": Object(), "stage": Word(("quantized", "calibrated")), "inputs": Many(INPUT), "training": Flag(),
     "graph": Many(Text())},
    {"within": Text(), "around": Many(Text()), "norms": Word(("batch_statistics",)), "codes": Keyed(PLANES),
     "corrected": Many(Text())},
)  # fmt: skip
"""The fields that `save` writes."""


def read_report(content: bytes, fields: Kind, file: str) -> dict[str, Any]:
    """Return a report whose fields are as declared.

    Args:
        content: The text of qfunc.json.
        fields: ARTIFACT or SAVED_MODEL.
        file: The name of the file in errors.
    Raises:
        FileError: names the file and the field.
    """
    report: dict[str, Any] = require(fields, parse(content, file), file)
    _require_lengths(report.get("tensors", []), file)
    return report


def read_quantized(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the quantized tensors in the report of an artifact.

    Raises:
        FileError: names the field.
    """
    tensors: list[dict[str, Any]] = require(Many(TENSOR), report.get("tensors"), REPORT, "tensors")
    _require_lengths(tensors, REPORT)
    return tensors


def _require_lengths(tensors: list[dict[str, Any]], file: str) -> None:
    for i, tensor in enumerate(tensors):
        if len(tensor["scale"] or ()) != len(tensor["zero_point"] or ()):
            found, wanted = describe(tensor["zero_point"]), f"{describe(tensor['scale'])}, as its scale"
            raise damage_error(file, f"tensors[{i}].zero_point", found, wanted)


def lacks_classes(error: SpecError) -> bool:
    """Return True if an error of `read_target` is that the user's classes and functions in the target are not given."""
    return error.found.startswith(("unknown class", "unknown function"))


def read_target(document: Any, file: str, field: str = "", classes: Iterable[Any] = (), call: str = "from_json(text") -> Target:
    """Return the target in the value of a JSON text.

    Args:
        document: What the text of `specs.to_json` parses to.
        file: The name of the file in errors.
        field: The field of the file that holds the target, "" for the whole file.
        classes: User-defined classes and functions in the target.
        call: The beginning of the call that takes them, for errors.
    Raises:
        SpecError: names the file, and the field of the target.
    """
    try:
        target = specs.from_json(json.dumps(document), classes)
    except SpecError as e:
        where = f"{file}: {field}, {e.where}" if field else f"{file}: {e.where}"
        raise SpecError(where=where, found=e.found, wanted=e.wanted, do=e.do.replace("from_json(text", call)) from e
    if not isinstance(target, Target):
        raise damage_error(file, field, f"the spec {short(target)}", "a Target")
    return target
