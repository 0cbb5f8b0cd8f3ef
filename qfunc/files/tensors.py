"""The header of a safetensors file: types, shapes and places of the tensors, checked against the bytes that are there."""

from __future__ import annotations

import importlib
import math
import os
from pathlib import Path
from typing import Any

from qfunc.errors import first_line
from qfunc.files.fields import Count, JsonObject, Keyed, Many, Text, Word, require
from qfunc.files.folder import open_file
from qfunc.files.json_text import damage_error, parse

__all__ = ["read_tensors"]

_SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4,
          "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}  # fmt: skip
"""The bytes of an element by the format's name of its type, for the types that torch has."""
_TENSOR = JsonObject({
    "dtype": Word(tuple(_SIZES)), "shape": Many(Count(), most=64), "data_offsets": Many(Count(), least=2, most=2),
})  # fmt: skip
_LONGEST = 100_000_000  # of a header, as in safetensors itself
_METADATA = "__metadata__"


def read_tensors(path: Path) -> dict[str, Any]:
    """Return the tensors of a safetensors file, each of a known type and of a shape that fills its bytes.

    Raises:
        FileError: names the file and the field of its header.
    """
    _require_header(*_header(path), str(path))
    safetensors: Any = importlib.import_module("safetensors.torch")
    try:
        found: dict[str, Any] = safetensors.load_file(path)
    except Exception as e:  # SafetensorError, and what torch raises
        raise damage_error(str(path), "", first_line(e), "a file that safetensors reads") from e
    return found


def _header(path: Path) -> tuple[Any, int]:
    # The header and the number of bytes after it.
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size < 8:
            raise damage_error(str(path), "", f"{size} bytes", "a header and its tensors")
        length = int.from_bytes(file.read(8), "little")
        if length > min(_LONGEST, size - 8):
            raise damage_error(str(path), "", f"a header of {length:,} bytes in a file of {size:,}", "a header inside the file")
        return parse(file.read(length), str(path)), size - 8 - length


def _require_header(header: Any, size: int, file: str) -> None:
    if isinstance(header, dict):
        require(Keyed(Text()), header.get(_METADATA, {}), file, _METADATA)
        header = {name: entry for name, entry in header.items() if name != _METADATA}
    end = 0
    for name, entry in sorted(require(Keyed(_TENSOR), header, file).items(), key=lambda pair: pair[1]["data_offsets"]):
        first, last = entry["data_offsets"]
        field, taken = f"[{name!r}]", math.prod(entry["shape"]) * _SIZES[entry["dtype"]]
        if (first, last) != (end, end + taken):
            wanted = f"{end:,} to {end + taken:,}, as its dtype and shape need"
            raise damage_error(file, f"{field}.data_offsets", f"bytes {first:,} to {last:,}", wanted)
        if last > size:
            raise damage_error(file, f"{field}.data_offsets", f"bytes to {last:,}", f"at most {size:,}, as the file holds")
        end = last
    if end != size:
        raise damage_error(file, "", f"{size:,} bytes of tensors", f"{end:,}, as in the header")
