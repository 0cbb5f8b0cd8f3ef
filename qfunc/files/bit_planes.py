"""Unsigned codes of 1 to 8 bits, packed as planes of bits: every width takes exactly its bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qfunc.files.fields import Count, JsonObject, Sizes, Word
from qfunc.files.json_text import damage_error

PLANES = JsonObject(
    {
        "shape": Sizes(),
        "bits": Count(1, 8),
        "dtype": Word(("torch.bfloat16", "torch.float16", "torch.float32", "torch.float64")),
    }
)
"""What a file says of a packed tensor: the shape and dtype of its real values, and the bits of a code."""


def pack(codes: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """Return the planes of n codes: uint8 [bits, ceil(n / 8)].  Bit j of byte i of plane k is bit k of code 8 i + j.

    Args:
        codes: uint8 of any shape, each below 2^bits.
        bits: The bits of a code, 1 to 8.

    >>> pack(np.uint8([1, 2, 3]), 2).tolist()
    [[5], [6]]
    """
    flat = codes.reshape(-1)
    return np.stack([np.packbits(flat >> k & 1, bitorder="little") for k in range(bits)])


def unpack(planes: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """Return the codes of `pack`, uint8 [count].

    >>> unpack(np.uint8([[5], [6]]), 3).tolist()
    [1, 2, 3]
    """
    codes = np.zeros(count, np.uint8)
    for k, plane in enumerate(planes):
        codes |= np.unpackbits(plane, count=count, bitorder="little") << np.uint8(k)
    return codes


def require_planes(tensors: Mapping[str, Any], coded: Mapping[str, Any], file: str) -> None:
    """Raise unless the packed tensors of a file have the sizes that it states.

    Args:
        tensors: The tensors of the file by name.
        coded: Name -> the fields `PLANES`.
        file: The name of the file in errors.
    Raises:
        FileError: names the file and the tensor.
    """
    for name, entry in coded.items():
        count = 1
        for size in entry["shape"]:
            count *= size
        wanted = ("torch.uint8", (entry["bits"], -(-count // 8)))
        tensor = tensors.get(name)
        found = None if tensor is None else (str(tensor.dtype), tuple(tensor.shape))
        if found != wanted:
            text = "no such tensor" if found is None else f"{found[0]} of shape {found[1]}"
            raise damage_error(
                file, f"[{name!r}]", text, f"{wanted[0]} of shape {wanted[1]}, as {entry['bits']}-bit codes need"
            )
