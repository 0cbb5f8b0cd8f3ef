"""The types of weights in GGUF files: the scheme and the bytes of each.

A block of 32 is a scale in float16, a minimum in some types, and codes along the last axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from attrs import frozen

from qfunc.specs import Scheme
from qfunc.specs.formats import (
    GGUF_MXFP4, GGUF_Q2_K, GGUF_Q3_K, GGUF_Q4_0, GGUF_Q4_1, GGUF_Q4_K, GGUF_Q5_0, GGUF_Q5_1, GGUF_Q5_K, GGUF_Q6_K, GGUF_Q8_0,
)  # fmt: skip
from qfunc.targets.ggml.super_blocks import pack_q2_k, pack_q3_k, pack_q4_k, pack_q6_k

Array = np.ndarray[Any, Any]
_BLOCK = 32
"""Elements of a block."""
_BITS = {"Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8}
"""Name of a type -> the bits of its codes."""
_HALF = _BLOCK // 2
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


class Parts(NamedTuple):
    """The codes of a weight, [N, K], and for each block its scale, and what `Affine` has beside it: [N, K / block]."""

    codes: Array
    scale: Array
    outer: Array
    minimum: Array
    outer_minimum: Array


@frozen(eq=False)
class WeightType:
    """A type of weights: its scheme, the name of the type that ggml quantizes inputs to, and the bytes of a weight."""

    scheme: Scheme
    input: str
    pack: Callable[[Parts], Array]

    def holds(self, scheme: Any) -> bool:
        """Return True for schemes whose codes, scales and minimums the type stores; they may be computed in other ways."""
        return _stored(scheme) == _stored(self.scheme)


def _stored(scheme: Scheme) -> tuple[Any, ...]:
    scale = scheme.scale
    stored = (scale.shared, scale.format, scale.integers, scale.within)
    return (scheme.format, scheme.symmetric, scheme.minimum, scale.dynamic, *stored)


def _pack(codes: Array, scale: Array, kind: str, minimum: Array | None = None) -> Array:
    """Return the bytes of codes [N, K], scales [N, K / 32] and minimums: uint8 [N, bytes of a row].

    Q8_0: a block is its scale, then 32 int8.  Q4_0: its scale, then 16 bytes of code + 8; byte i has entry i in its low half
    and entry i + 16 in its high half.  Q5_0: its scale, the highest bits of all code + 16, entry 0 first, then the others as
    in Q4_0.  Q4_1 and Q5_1: the minimum after the scale, and codes as they are.
    Source: ggml, src/ggml-common.h, block_q4_0, block_q4_1, block_q5_0, block_q5_1 and block_q8_0; src/ggml-quants.c.

    >>> _pack(np.full((1, 32), -8), np.float32([[1.0]]), "Q4_0").tobytes().hex(" ", 2)[:12]
    '003c 0000 00'
    """
    bits, blocks = _BITS[kind], codes.reshape(len(codes), -1, _BLOCK).astype(np.int8)
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


def _pack_mxfp4(values: Array, scale: Array) -> Array:
    """Return the bytes of values [N, K] in MXFP4: uint8 [N, bytes of a row].

    A block is log2 of its scale plus 127, then 16 bytes with the indices of two values; byte i has entry i in its low half and
    entry i + 16 in its high half.  The index of -v is that of v plus 8, and that of zeros 0.

    Args:
        values: Elements of E2M1.
        scale: Powers of two, [N, K / 32].
    Source: ggml, src/ggml-common.h, block_mxfp4 and kvalues_mxfp4.

    >>> _pack_mxfp4(np.full((1, 32), -6.0), np.float32([[2.0]])).tobytes()[:4].hex()
    '80ffffff'
    """
    blocks = values.reshape(len(values), -1, _BLOCK)
    index = (np.searchsorted(_E2M1, np.abs(blocks)) + 8 * (blocks < 0)).astype(np.uint8)
    exponents = (np.frexp(scale)[1] + 126).astype(np.uint8)[..., None]
    return np.concatenate([exponents, index[..., :_HALF] | index[..., _HALF:] << 4], -1).reshape(len(values), -1)


def _half(numbers: Array) -> Array:
    return np.ascontiguousarray(numbers.astype("<f2")[..., None]).view(np.uint8)


WEIGHTS = {
    "Q8_0": WeightType(GGUF_Q8_0, "Q8_0", lambda p: _pack(p.codes, p.scale, "Q8_0")),
    "Q5_0": WeightType(GGUF_Q5_0, "Q8_0", lambda p: _pack(p.codes, p.scale, "Q5_0")),
    "Q4_0": WeightType(GGUF_Q4_0, "Q8_0", lambda p: _pack(p.codes, p.scale, "Q4_0")),
    "Q5_1": WeightType(GGUF_Q5_1, "Q8_1", lambda p: _pack(p.codes, p.scale, "Q5_1", p.minimum)),
    "Q4_1": WeightType(GGUF_Q4_1, "Q8_1", lambda p: _pack(p.codes, p.scale, "Q4_1", p.minimum)),
    "MXFP4": WeightType(GGUF_MXFP4, "Q8_0", lambda p: _pack_mxfp4(p.codes, p.scale)),
    "Q6_K": WeightType(GGUF_Q6_K, "Q8_K", lambda p: pack_q6_k(p.codes, p.scale, p.outer)),
    "Q5_K": WeightType(GGUF_Q5_K, "Q8_K", lambda p: pack_q4_k(*p, bits=5)),
    "Q4_K": WeightType(GGUF_Q4_K, "Q8_K", lambda p: pack_q4_k(*p)),
    "Q3_K": WeightType(GGUF_Q3_K, "Q8_K", lambda p: pack_q3_k(p.codes, p.scale, p.outer)),
    "Q2_K": WeightType(GGUF_Q2_K, "Q8_K", lambda p: pack_q2_k(*p)),
}
"""Name of a type -> the type."""
