"""The bytes of GGUF's blocks of 32: a scale in float16, a minimum in some types, and codes along the last axis."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BLOCK = 32
"""Elements of a block."""

BITS = {"Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8}
"""Name of a type -> the bits of its codes."""

_HALF = BLOCK // 2
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def pack(codes: Array, scale: Array, kind: str, minimum: Array | None = None) -> Array:
    """Return the bytes of codes [N, K], scales [N, K / 32] and minimums: uint8 [N, bytes of a row].

    Q8_0: a block is its scale, then 32 int8.  Q4_0: its scale, then 16 bytes of code + 8; byte i has entry i in its low half
    and entry i + 16 in its high half.  Q5_0: its scale, the highest bits of all code + 16, entry 0 first, then the others as
    in Q4_0.  Q4_1 and Q5_1: the minimum after the scale, and codes as they are.
    Source: ggml, src/ggml-common.h, block_q4_0, block_q4_1, block_q5_0, block_q5_1 and block_q8_0; src/ggml-quants.c.

    >>> pack(np.full((1, 32), -8), np.float32([[1.0]]), "Q4_0").tobytes().hex(" ", 2)[:12]
    '003c 0000 00'
    """
    bits, blocks = BITS[kind], codes.reshape(len(codes), -1, BLOCK).astype(np.int8)
    parts = [_half(scale)] if minimum is None else [_half(scale), _half(minimum)]
    if bits == 8:
        parts.append(blocks.view(np.uint8))
    else:
        index = (blocks + (1 << bits - 1 if minimum is None else 0)).astype(np.uint8)
        if bits == 5:
            parts.append(np.packbits(index >> 4, axis=-1, bitorder="little"))
        low = index & 15
        parts.append(low[..., :_HALF] | low[..., _HALF:] << 4)
    return np.concatenate(parts, -1).reshape(len(codes), -1)


def pack_mxfp4(values: Array, scale: Array) -> Array:
    """Return the bytes of values [N, K] in MXFP4: uint8 [N, bytes of a row].

    A block is log2 of its scale plus 127, then 16 bytes with the indices of two values; byte i has entry i in its low half and
    entry i + 16 in its high half.  The index of -v is that of v plus 8, and that of zeros 0.

    Args:
        values: Elements of E2M1.
        scale: Powers of two, [N, K / 32].
    Source: ggml, src/ggml-common.h, block_mxfp4 and kvalues_mxfp4.

    >>> pack_mxfp4(np.full((1, 32), -6.0), np.float32([[2.0]])).tobytes()[:4].hex()
    '80ffffff'
    """
    blocks = values.reshape(len(values), -1, BLOCK)
    index = (np.searchsorted(_E2M1, np.abs(blocks)) + 8 * (blocks < 0)).astype(np.uint8)
    exponents = (np.frexp(scale)[1] + 126).astype(np.uint8)[..., None]
    return np.concatenate([exponents, index[..., :_HALF] | index[..., _HALF:] << 4], -1).reshape(len(values), -1)


def _half(numbers: Array) -> Array:
    return np.ascontiguousarray(numbers.astype("<f2")[..., None]).view(np.uint8)


__all__ = ["BITS", "BLOCK", "pack", "pack_mxfp4"]
