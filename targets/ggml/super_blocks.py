"""The bytes of GGUF's blocks of 256: numbers in float16, integers of scales, and codes along the last axis."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

SUPER = 256
"""Elements of a super-block."""


def pack_q4_k(codes: Array, scale: Array, outer: Array, minimum: Array, outer_minimum: Array, bits: int = 4) -> Array:
    """Return the bytes of codes [N, K] in Q4_K, or in Q5_K for 5 bits: uint8 [N, bytes of a row].

    A super-block is d and e in float16, 12 bytes with 8 integers c and 8 integers k of 6 bits, the highest bits in Q5_K, and
    128 bytes with two codes of 4 bits: of entries i and i + 32 of 64.

    Args:
        codes: In [0, 2^bits - 1].
        scale: Integers c for 32 entries, [N, K / 32], as are all below.
        outer: d.
        minimum: -k.
        outer_minimum: e.
        bits: 4 or 5.
    Source: ggml, src/ggml-common.h, block_q4_K and block_q5_K; src/ggml-quants.c, get_scale_min_k4.

    >>> ones = np.ones((1, 8))
    >>> pack_q4_k(np.full((1, 256), 15), ones, ones, -ones, ones).tobytes()[:20].hex(" ", 4)
    '003c003c 01010101 01010101 11111111 ffffffff'
    """
    blocks = codes.reshape(len(codes), -1, 4, 2, 32).astype(np.uint8)
    parts = [_half(outer[:, ::8]), _half(outer_minimum[:, ::8]), _sixes(_integers(scale), _integers(-minimum))]
    if bits == 5:
        highest = (blocks >> 4).reshape(*blocks.shape[:2], 8, 32) << np.arange(8, dtype=np.uint8)[:, None]
        parts.append(np.bitwise_or.reduce(highest, axis=2))
    low = blocks & 15
    parts.append((low[..., 0, :] | low[..., 1, :] << 4).reshape(*blocks.shape[:2], 128))
    return np.concatenate(parts, -1).reshape(len(codes), -1)


def pack_q6_k(codes: Array, scale: Array, outer: Array) -> Array:
    """Return the bytes of codes [N, K] in Q6_K: uint8 [N, bytes of a row].

    A super-block is 128 bytes with the low 4 bits of two codes + 32, 64 with the high 2 bits of four, 16 integers c in int8,
    and d in float16.  Of 128 entries, i and i + 64 share the bytes of low bits, and i, i + 32, i + 64 and i + 96 the others.

    Args:
        codes: In [-32, 31].
        scale: Integers c for 16 entries, [N, K / 16].
        outer: d, in the same shape.
    Source: ggml, src/ggml-common.h, block_q6_K; src/ggml-quants.c, quantize_row_q6_K_ref.

    >>> pack_q6_k(np.full((1, 256), 31), np.ones((1, 16)), np.ones((1, 16))).tobytes()[190:].hex(" ", 2)[:14]
    'ffff 0101 0101'
    """
    index = (codes + 32).reshape(len(codes), -1, 2, 4, 32).astype(np.uint8)
    low, high = index & 15, index >> 4
    lows = low[..., :2, :] | low[..., 2:, :] << 4
    highs = np.bitwise_or.reduce(high << (2 * np.arange(4, dtype=np.uint8))[:, None], axis=-2)
    shape, integers = index.shape[:2], scale.reshape(len(codes), -1, 16).astype(np.int8).view(np.uint8)
    parts = [lows.reshape(*shape, 128), highs.reshape(*shape, 64), integers, _half(outer[:, ::16])]
    return np.concatenate(parts, -1).reshape(len(codes), -1)


def pack_q2_k(codes: Array, scale: Array, outer: Array, minimum: Array, outer_minimum: Array) -> Array:
    """Return the bytes of codes [N, K] in Q2_K: uint8 [N, bytes of a row].

    A super-block is 16 bytes with the integers c and k for 16 entries in their low and high halves, 64 bytes with four codes
    each, of entries i, i + 32, i + 64 and i + 96 of 128, and d and e in float16.

    Args:
        codes: In [0, 3].
        scale, minimum: Integers c and -k for 16 entries, [N, K / 16].
        outer, outer_minimum: d and e, in the same shape.
    Source: ggml, src/ggml-common.h, block_q2_K; src/ggml-quants.c, quantize_row_q2_K_ref.

    >>> ones = np.ones((1, 16))
    >>> pack_q2_k(np.full((1, 256), 3), ones, ones, -ones, ones).tobytes()[14:].hex(" ", 2)[-14:]
    'ffff 003c 003c'
    """
    shape = (len(codes), -1, 16)
    integers = scale.reshape(shape).astype(np.uint8) | (-minimum).reshape(shape).astype(np.uint8) << 4
    halves = [_half(outer[:, ::16]), _half(outer_minimum[:, ::16])]
    return np.concatenate([integers, _quarters(codes), *halves], -1).reshape(len(codes), -1)


def pack_q3_k(codes: Array, scale: Array, outer: Array) -> Array:
    """Return the bytes of codes [N, K] in Q3_K: uint8 [N, bytes of a row].

    A super-block is 32 bytes with the highest bits of codes + 4, entries i + 32 j in bit j of byte i, the other bits as in
    Q2_K, 12 bytes with 16 integers c + 32 of 6 bits, and d in float16.

    Args:
        codes: In [-4, 3].
        scale: Integers c for 16 entries, [N, K / 16].
        outer: d, in the same shape.
    Source: ggml, src/ggml-common.h, block_q3_K; src/ggml-quants.c, quantize_row_q3_K_ref.

    >>> pack_q3_k(np.full((1, 256), 3), np.ones((1, 16)), np.ones((1, 16))).tobytes()[94:].hex(" ", 4)
    'ffff1111 11111111 1111aaaa aaaa003c'
    """
    index = (codes + 4).reshape(len(codes), -1, 8, 32).astype(np.uint8)
    highest = np.bitwise_or.reduce(index >> 2 << np.arange(8, dtype=np.uint8)[:, None], axis=2)
    c = (scale + 32).reshape(len(codes), -1, 4, 4).astype(np.uint8)
    lows = (c[..., :2, :] & 15 | (c[..., 2:, :] & 15) << 4).reshape(*c.shape[:2], 8)
    highs = np.bitwise_or.reduce(c >> 4 << (2 * np.arange(4, dtype=np.uint8))[:, None], axis=2)
    parts = [highest, _quarters(index.reshape(codes.shape) & 3), lows, highs, _half(outer[:, ::16])]
    return np.concatenate(parts, -1).reshape(len(codes), -1)


def _quarters(codes: Array) -> Array:
    # Four codes of 2 bits in a byte: of entries i, i + 32, i + 64 and i + 96 of 128.
    runs = codes.reshape(len(codes), -1, 2, 4, 32).astype(np.uint8)
    packed: Array = np.bitwise_or.reduce(runs << (2 * np.arange(4, dtype=np.uint8))[:, None], axis=-2)
    return packed.reshape(*runs.shape[:2], 64)


def _half(number: Array) -> Array:
    return np.ascontiguousarray(number.astype("<f2")[..., None]).view(np.uint8)


def _integers(scale: Array) -> Array:
    return scale.reshape(len(scale), -1, 8).astype(np.uint8)


def _sixes(scale: Array, minimum: Array) -> Array:
    # Four bytes c, four bytes k, and four bytes of the low bits of the other c and k; the first eight have their high bits.
    first, last = (scale[..., :4], minimum[..., :4]), (scale[..., 4:], minimum[..., 4:])
    heads = [number | (other >> 4) << 6 for number, other in zip(first, last, strict=True)]
    return np.concatenate([*heads, last[0] & 15 | (last[1] & 15) << 4], -1)
