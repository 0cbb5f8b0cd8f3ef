"""Safetensors files: types, shapes and places of the tensors, checked against the bytes that are there; digests of tensors."""

from __future__ import annotations

import hashlib
import importlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from qfunc.errors import FileError, first_line
from qfunc.files.fields import Count, JsonObject, Keyed, Many, Text, Word, require
from qfunc.files.folder import open_file
from qfunc.files.json_text import damage_error, parse

SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4,
          "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}  # fmt: skip
"""The bytes of an element by the format's name of its type, for the types that torch has."""
_TENSOR = JsonObject({
    "dtype": Word(tuple(SIZES)), "shape": Many(Count(), most=64), "data_offsets": Many(Count(), least=2, most=2),
})  # fmt: skip
_LONGEST = 100_000_000  # of a header, as in safetensors itself
_METADATA = "__metadata__"


def read_tensors(path: Path) -> dict[str, Any]:
    """Return the tensors of a safetensors file, each of a known type and of a shape that fills its bytes.

    Raises:
        FileError: names the file and the field of its header.
    """
    with open_file(path) as file:
        _checked_header(file, str(path))
    safetensors: Any = importlib.import_module("safetensors.torch")
    try:
        found: dict[str, Any] = safetensors.load_file(path)
    except Exception as e:  # SafetensorError, and what torch raises
        raise damage_error(str(path), "", first_line(e), "a file that safetensors reads") from e
    return found


def read_header(path: Path) -> tuple[dict[str, Any], dict[str, str], int]:
    """Return the tensors of a safetensors file by name, its metadata, and the place of the first tensor; links are followed.

    Raises:
        FileError: names the file and the field of its header.
    """
    try:
        with path.open("rb") as file:
            return _checked_header(file, str(path))
    except OSError as e:
        do = "Write the checkpoint again, with all its files."
        raise FileError(where=str(path), found=(e.strerror or str(e)).lower(), wanted="a file", do=do) from e


def _checked_header(file: BinaryIO, name: str) -> tuple[dict[str, Any], dict[str, str], int]:
    size = os.fstat(file.fileno()).st_size
    if size < 8:
        raise damage_error(name, "", f"{size} bytes", "a header and its tensors")
    length = int.from_bytes(file.read(8), "little")
    if length > min(_LONGEST, size - 8):
        raise damage_error(name, "", f"a header of {length:,} bytes in a file of {size:,}", "a header inside the file")
    header, metadata = parse(file.read(length), name), {}
    if isinstance(header, dict):
        metadata = require(Keyed(Text()), header.get(_METADATA, {}), name, _METADATA)
        header = {key: entry for key, entry in header.items() if key != _METADATA}
    _require_header(header, size - 8 - length, name)
    return header, metadata, 8 + length


def _require_header(header: Any, size: int, file: str) -> None:
    end = 0
    for name, entry in sorted(require(Keyed(_TENSOR), header, file).items(), key=lambda pair: pair[1]["data_offsets"]):
        first, last = entry["data_offsets"]
        field, taken = f"[{name!r}]", math.prod(entry["shape"]) * SIZES[entry["dtype"]]
        if (first, last) != (end, end + taken):
            wanted = f"{end:,} to {end + taken:,}, as its dtype and shape need"
            raise damage_error(file, f"{field}.data_offsets", f"bytes {first:,} to {last:,}", wanted)
        if last > size:
            raise damage_error(file, f"{field}.data_offsets", f"bytes to {last:,}", f"at most {size:,}, as the file holds")
        end = last
    if end != size:
        raise damage_error(file, "", f"{size:,} bytes of tensors", f"{end:,}, as in the header")


def digest(tensors: Mapping[str, Tensor], *texts: str) -> str:
    """Return a digest of tensors by name (their shapes, dtypes and bits) and of texts.

    >>> digest({"x": torch.zeros(2)}) == digest({"x": torch.zeros(2)}), digest({}, "a") == digest({}, "b")
    (True, False)
    """
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        sha.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    for text in texts:
        sha.update(text.encode())
    return sha.hexdigest()
