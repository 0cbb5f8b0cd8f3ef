"""The bytes of GGUF's blocks: a scale in float16 and 32 codes along the last axis."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BLOCK = 32
"""Elements of a block."""

FORMATS = {"Q4_0": 4, "Q8_0": 8}
"""Name of a type -> the bits of its codes."""


def pack(codes: Array, scale: Array, kind: str) -> Array:
    """Return the bytes of codes [N, K] and scales [N, K / 32]: uint8 [N, bytes of a row].

    Q8_0: a block is its scale, then 32 int8.  Q4_0: its scale, then 16 bytes of code + 8; byte i has entry i in its low half
    and entry i + 16 in its high half.
    Source: ggml, src/ggml-common.h, block_q4_0 and block_q8_0; src/ggml-quants.c.

    >>> pack(np.full((1, 32), -8), np.float32([[1.0]]), "Q4_0").tobytes().hex(" ", 2)[:12]
    '003c 0000 00'
    """
    blocks = codes.reshape(len(codes), -1, BLOCK).astype(np.int8)
    if FORMATS[kind] == 4:
        index = (blocks + 8).astype(np.uint8)
        stored = index[..., : BLOCK // 2] | index[..., BLOCK // 2 :] << 4
    else:
        stored = blocks.view(np.uint8)
    scales = scale.astype("<f2")[..., None].view(np.uint8)
    return np.concatenate([scales, stored], -1).reshape(len(codes), -1)


def unpack(data: Array, kind: str) -> tuple[Array, Array]:
    """Return the codes [N, K], int8, and the scales [N, K / 32], float32, of bytes [N, bytes of a row].

    >>> [a.tolist() for a in unpack(np.uint8([[0, 60] + [1] * 32]), "Q8_0")] == [[[1] * 32], [[1.0]]]
    True
    """
    blocks = data.reshape(len(data), -1, 2 + BLOCK * FORMATS[kind] // 8)
    scale = np.ascontiguousarray(blocks[..., :2]).view("<f2")[..., 0].astype(np.float32)
    stored = blocks[..., 2:]
    if FORMATS[kind] == 4:
        codes = np.concatenate([stored & 15, stored >> 4], -1).astype(np.int8) - 8
    else:
        codes = np.ascontiguousarray(stored).view(np.int8)
    return codes.reshape(len(data), -1), scale


__all__ = ["BLOCK", "FORMATS", "pack", "unpack"]
