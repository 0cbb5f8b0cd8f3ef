"""Write GGUF files: named values and tensors, of version 3."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from attrs import frozen

from qfunc.errors import DeployError

_MAGIC, _VERSION, _ALIGNMENT = b"GGUF", 3, 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9  # GGUF_TYPE_UINT32, ...
LONGEST_NAME = 63
"""GGML_MAX_NAME, with the null character that ends a name."""


Value = str | int | float | bool | Sequence[str] | Sequence[int]
"""What a key of a file may have."""


class Content(Protocol):
    """The bytes of a tensor: a NumPy array, or a `StoredTensor`."""

    @property
    def nbytes(self) -> int:
        """Their number."""
        ...

    def tobytes(self) -> bytes:
        """Return them."""
        ...


@frozen(eq=False)
class GgufTensor:
    """A tensor of a file: its name, the number of its type in ggml, its shape, the last axis innermost, and its bytes."""

    name: str
    kind: int
    shape: tuple[int, ...]
    data: Content


def gguf_file(values: Mapping[str, Value], tensors: Sequence[GgufTensor]) -> bytes:
    """Return the bytes of a GGUF file, as `gguf_chunks` yields them.

    >>> gguf_file({"general.architecture": "qfunc"}, [])[:8]
    b'GGUF\\x03\\x00\\x00\\x00'
    """
    return b"".join(gguf_chunks(values, tensors))


def gguf_chunks(values: Mapping[str, Value], tensors: Sequence[GgufTensor]) -> Iterator[bytes]:
    """Yield the bytes of a GGUF file: the header, and then one tensor at a time.

    Numbers are stored in 32 bits: an int is unsigned, but signed in a list, as llama.cpp reads them.

    Raises:
        DeployError: a name of more than 63 bytes, which ggml does not read.
    Source: ggml, docs/gguf.md.
    """
    head = [_MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(values))]
    for key, value in values.items():
        head += [_string(key), _typed(value)]
    offset = 0
    for tensor in tensors:
        _require_name(tensor.name)
        sizes = tensor.shape[::-1]
        head += [_string(tensor.name), struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, tensor.kind, offset)]
        offset += _padded(tensor.data.nbytes)
    content = b"".join(head)
    yield content.ljust(_padded(len(content)), b"\0")
    for tensor in tensors:
        yield tensor.data.tobytes().ljust(_padded(tensor.data.nbytes), b"\0")


def _typed(value: Value) -> bytes:
    if isinstance(value, list | tuple):
        content = (_string(v) if isinstance(v, str) else struct.pack("<i", v) for v in value)
        return struct.pack("<IIQ", _ARRAY, _STRING if isinstance(value[0], str) else _INT32, len(value)) + b"".join(content)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    return struct.pack("<If", _FLOAT32, value) if isinstance(value, float) else struct.pack("<II", _UINT32, value)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _require_name(name: str) -> None:
    if len(name.encode()) > LONGEST_NAME:
        found, do = f"a name of {len(name.encode())} bytes", "Nest the layer less deeply, or shorten the names of its modules."
        raise DeployError(where=f"tensor {name!r}", found=found, wanted=f"at most {LONGEST_NAME}, as ggml reads", do=do)
