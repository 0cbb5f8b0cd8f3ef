"""The state of a sequence, as llama.cpp copies it: the positions of its tokens, and their keys and values in float16."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from qfunc.errors import VerifyError

Array = np.ndarray[Any, Any]

_F16 = 1
_HEAD, _CELL, _TENSOR = struct.Struct("<IiII"), struct.Struct("<iii"), struct.Struct("<iQ")
_MAGIC = 0xAF143CD8


def packed(cache: Sequence[Array], count: int, adjacent: bool) -> bytes:
    """Return the state of `count` tokens from position 0.

    Args:
        cache: Keys and values of each layer in turn, [H, L, D], with values of float16.
        count: The tokens.
        adjacent: The file has entries i and i + D / 2 of a key beside each other.
    Source: llama.cpp, src/llama-context.cpp: state_seq_write_data, and src/llama-kv-cache.cpp: state_write.

    >>> zeros = np.zeros((2, 8, 4), np.float32)
    >>> len(packed([zeros, zeros], 3, True)) == 16 + 3 * 12 + 8 + 2 * (12 + 3 * 16)
    True
    """
    parts = [_HEAD.pack(_MAGIC, 0, 1, count), *(_CELL.pack(position, 1, 0) for position in range(count))]
    parts.append(struct.pack("<II", 0, len(cache) // 2))
    keys = [_paired(t) if adjacent else t for t in cache[::2]]
    for tensor in (*keys, *cache[1::2]):
        rows = tensor[:, :count].swapaxes(0, 1).astype("<f2").reshape(count, -1)
        parts += [_TENSOR.pack(_F16, 2 * rows.shape[1]), rows.tobytes()]
    return b"".join(parts)


def _paired(keys: Array) -> Array:
    return keys.reshape(*keys.shape[:-1], 2, -1).swapaxes(-1, -2).reshape(keys.shape)


def _apart(keys: Array) -> Array:
    return keys.reshape(*keys.shape[:-1], -1, 2).swapaxes(-1, -2).reshape(keys.shape)


def unpacked(state: bytes, count: int, cache: Sequence[Array], adjacent: bool) -> list[Array]:
    """Return the cache of a state in float32; rows after the tokens are those of `cache`.

    Raises:
        VerifyError: a state of another form, as of another version of llama.cpp.

    >>> cache = [np.arange(16, dtype=np.float32).reshape(2, 2, 4), np.ones((2, 2, 4), np.float32)]
    >>> [bool((a == b).all()) for a, b in zip(unpacked(packed(cache, 2, True), 2, cache, True), cache)]
    [True, True]
    """
    end, found = _HEAD.size + count * _CELL.size + 8, list[Array]()
    for index, tensor in enumerate((*cache[::2], *cache[1::2])):
        heads, _, size = tensor.shape
        start, end = end + _TENSOR.size, end + _TENSOR.size + 2 * count * heads * size
        rows = np.frombuffer(state[start:end].ljust(end - start, b"\0"), "<f2").reshape(count, heads, size)
        result = np.array(tensor, np.float32)
        result[:, :count] = (_apart(rows) if adjacent and 2 * index < len(cache) else rows).swapaxes(0, 1)
        found.append(result)
    ordered = [t for pair in zip(found[: len(found) // 2], found[len(found) // 2 :], strict=True) for t in pair]
    if packed(ordered, count, adjacent) != state:
        do = "Install llama-cpp-python 0.3.36, or compare whole sequences, from a model exported with input_ids only."
        found_bytes, wanted = f"a state of {len(state)} bytes", "that of llama.cpp 0.3.36 for this cache"
        raise VerifyError(where="LlamaCppRunner", found=found_bytes, wanted=wanted, do=do)
    return ordered


__all__ = ["Array", "packed", "unpacked"]
