"""Tensors by their bytes, in memory or in a file, and safetensors files that are written from them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from qfunc.files.tensors import SIZES, read_header

_ORDER = ("U64", "I64", "F64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16", "F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL")
"""The types in the order in which safetensors stores them, so that each tensor is aligned."""


@frozen(eq=False)
class StoredTensor:
    """A tensor: safetensors' name of its type, its shape, and a function that returns its bytes, little-endian.

    >>> StoredTensor("F32", (2, 3), lambda: bytes(24)).nbytes
    24
    """

    dtype: str
    shape: tuple[int, ...]
    tobytes: Callable[[], bytes]

    @property
    def nbytes(self) -> int:
        """The number of its bytes."""
        return math.prod(self.shape) * SIZES[self.dtype]


def stored_tensors(path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Return the tensors of a safetensors file by name, each of which is read when its bytes are asked for, and the metadata.

    Raises:
        FileError: names the file and the field of its header.
    """
    header, metadata, start = read_header(path)

    def reader(first: int, last: int) -> Callable[[], bytes]:
        def read() -> bytes:
            with path.open("rb") as file:
                file.seek(start + first)
                return file.read(last - first)

        return read

    found = {n: StoredTensor(e["dtype"], tuple(e["shape"]), reader(*e["data_offsets"])) for n, e in header.items()}
    return found, metadata


def file_of_tensors(tensors: Mapping[str, StoredTensor], metadata: Mapping[str, str]) -> Iterator[bytes]:
    """Yield the bytes of a safetensors file, the header first and then one tensor at a time, as safetensors itself writes it.

    Source: safetensors 0.6, README, "Format".

    >>> b"".join(file_of_tensors({"x": StoredTensor("U8", (1,), lambda: b"!")}, {}))[8:]
    b'{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}   !'
    """
    names = sorted(tensors, key=lambda name: (_ORDER.index(tensors[name].dtype), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        tensor, first = tensors[name], end
        end += tensor.nbytes
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [first, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        yield tensors[name].tobytes()
