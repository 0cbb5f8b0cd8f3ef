"""How compressed-tensors stores codes and scales: integers in words of 32 bits, E2M1 in halves of bytes, E8M0 as exponents."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of E2M1 by the low three bits of a code."""


def pack_words(codes: Array, bits: int) -> Array:
    """Return signed codes [N, K] in words, int32 [N, ceil(K bits / 32)].

    A row is one string of bits: code + 2^(bits - 1) by code, the low bits first, and zeros up to the end of a word.
    Source: compressed-tensors, compressors/pack_quantized/helpers.py.

    >>> [hex(word) for word in pack_words(np.array([[-8, -7, -6, 7]]), 4)[0]]
    ['0xf210']
    """
    unsigned = (codes.astype(np.int64) + (1 << bits - 1)).astype(np.uint8)
    row = np.unpackbits(unsigned[..., None], axis=-1, bitorder="little")[..., :bits].reshape(len(codes), -1)
    return np.packbits(np.pad(row, ((0, 0), (0, -row.shape[1] % 32))), axis=-1, bitorder="little").view("<i4")


def pack_halves(values: Array) -> Array:
    """Return values of E2M1 [N, K], K even, in bytes [N, K / 2], the first of two in the low half.

    Source: compressed-tensors, compressors/nvfp4/helpers.py; OCP Microscaling Formats 1.0, table 1.

    >>> pack_halves(np.array([[0.5, -6.0, 1.0, -0.0]])).tolist()
    [[241, 130]]
    """
    index = np.searchsorted(E2M1_VALUES, np.abs(values)).astype(np.uint8) | np.signbit(values).astype(np.uint8) << 3
    return np.asarray(index[:, ::2] | index[:, 1::2] << 4, np.uint8)


def exponents(scale: Array) -> Array:
    """Return powers of two as E8M0, 127 + log2 s.

    >>> exponents(np.float32([0.25, 1.0])).tolist()
    [125, 127]
    """
    return (np.frexp(scale)[1] + 126).astype(np.uint8)


def two_levels(scale: Array, largest: float) -> tuple[Array, float]:
    """Return (s1, g) with s = s1 / g: g is a power of two by which `largest` is at most 448 and above 224.

    >>> two_levels(np.float32([0.5, 0.25]), 0.5)
    (array([256., 128.], dtype=float32), 512.0)
    """
    fraction, exponent = np.frexp(largest / 448.0)
    outer = 2.0 ** float(exponent - (fraction == 0.5)) if largest else 1.0
    return np.asarray(scale / np.float32(outer), np.float32), 1.0 / outer


__all__ = ["E2M1_VALUES", "exponents", "pack_halves", "pack_words", "two_levels"]
