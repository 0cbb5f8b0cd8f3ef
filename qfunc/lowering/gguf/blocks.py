"""The bytes of GGUF's blocks: a scale in float16 and 32 codes along the last axis."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BLOCK = 32
"""Elements of a block."""

FORMATS = {"Q4_0": 4, "Q5_0": 5, "Q8_0": 8}
"""Name of a type -> the bits of its codes."""

_HALF = BLOCK // 2


def pack(codes: Array, scale: Array, kind: str) -> Array:
    """Return the bytes of codes [N, K] and scales [N, K / 32]: uint8 [N, bytes of a row].

    Q8_0: a block is its scale, then 32 int8.  Q4_0: its scale, then 16 bytes of code + 8; byte i has entry i in its low half
    and entry i + 16 in its high half.  Q5_0: its scale, the highest bits of all code + 16, entry 0 first, then the others as
    in Q4_0.
    Source: ggml, src/ggml-common.h, block_q4_0, block_q5_0 and block_q8_0; src/ggml-quants.c.

    >>> pack(np.full((1, 32), -8), np.float32([[1.0]]), "Q4_0").tobytes().hex(" ", 2)[:12]
    '003c 0000 00'
    """
    bits, blocks = FORMATS[kind], codes.reshape(len(codes), -1, BLOCK).astype(np.int8)
    parts: list[Array] = [np.ascontiguousarray(scale.astype("<f2")[..., None]).view(np.uint8)]
    if bits == 8:
        parts.append(blocks.view(np.uint8))
    else:
        index = (blocks + (1 << bits - 1)).astype(np.uint8)
        if bits == 5:
            parts.append(np.packbits(index >> 4, axis=-1, bitorder="little"))
        low = index & 15
        parts.append(low[..., :_HALF] | low[..., _HALF:] << 4)
    return np.concatenate(parts, -1).reshape(len(codes), -1)


def unpack(data: Array, kind: str) -> tuple[Array, Array]:
    """Return the codes [N, K], int8, and the scales [N, K / 32], float32, of bytes [N, bytes of a row].

    >>> [a.tolist() for a in unpack(np.uint8([[0, 60] + [1] * 32]), "Q8_0")] == [[[1] * 32], [[1.0]]]
    True
    """
    bits = FORMATS[kind]
    blocks = data.reshape(len(data), -1, 2 + BLOCK * bits // 8)
    scale = np.ascontiguousarray(blocks[..., :2]).view("<f2")[..., 0].astype(np.float32)
    stored = blocks[..., 2:]
    if bits == 8:
        return np.ascontiguousarray(stored).view(np.int8).reshape(len(data), -1), scale
    low = stored[..., -_HALF:]
    index = np.concatenate([low & 15, low >> 4], -1)
    if bits == 5:
        index = index | np.unpackbits(stored[..., :4], axis=-1, bitorder="little") << 4
    return (index.astype(np.int8) - np.int8(1 << bits - 1)).reshape(len(data), -1), scale


__all__ = ["BLOCK", "FORMATS", "pack", "unpack"]
