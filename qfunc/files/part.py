"""A part of a network as a lowering stores it: tensors, and what it needs to know to put parts together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, field, frozen

from qfunc.files.fields import JsonObject, Many, Object, Text, require
from qfunc.files.json_text import parse
from qfunc.files.stored_tensor import StoredTensor, file_of_tensors, stored_tensors

_KEY = "part"
_PART = JsonObject({"notes": Object(), "inputs": Many(Text()), "outputs": Many(Text()), "report": Object()})


@frozen(eq=False)
class Part:
    """Tensors by name; `notes` are JSON data of the lowering; `inputs` and `outputs` those of the whole network.

    `report` has the quantized tensors and the units of the part, as the report of an artifact has them.
    """

    tensors: Mapping[str, StoredTensor]
    notes: Mapping[str, Any]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    report: Mapping[str, Any] = field(factory=dict)


def file_of_part(part: Part) -> Iterator[bytes]:
    """Yield the bytes of a safetensors file with a part."""
    data = asdict(part, recurse=False, filter=lambda a, _: a.name != "tensors")
    return file_of_tensors(part.tensors, {_KEY: json.dumps(data)})


def read_part(path: Path) -> Part:
    """Return the part of a file; its tensors are read when their bytes are asked for.

    Raises:
        FileError: the file is damaged.
    """
    tensors, metadata = stored_tensors(path)
    data = require(_PART, parse(metadata.get(_KEY, "").encode(), str(path)), str(path), _KEY)
    return Part(tensors, data["notes"], tuple(data["inputs"]), tuple(data["outputs"]), data["report"])
