"""The types of weights in GGUF files: the scheme and the bytes of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from attrs import frozen

from qfunc.specs import Scheme
from qfunc.specs.formats import (
    GGUF_MXFP4, GGUF_Q2_K, GGUF_Q3_K, GGUF_Q4_0, GGUF_Q4_1, GGUF_Q4_K, GGUF_Q5_0, GGUF_Q5_1, GGUF_Q5_K, GGUF_Q6_K, GGUF_Q8_0,
)  # fmt: skip
from qfunc.targets.ggml.blocks import pack, pack_mxfp4
from qfunc.targets.ggml.super_blocks import pack_q2_k, pack_q3_k, pack_q4_k, pack_q6_k

Array = np.ndarray[Any, Any]


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


WEIGHTS = {
    "Q8_0": WeightType(GGUF_Q8_0, "Q8_0", lambda p: pack(p.codes, p.scale, "Q8_0")),
    "Q5_0": WeightType(GGUF_Q5_0, "Q8_0", lambda p: pack(p.codes, p.scale, "Q5_0")),
    "Q4_0": WeightType(GGUF_Q4_0, "Q8_0", lambda p: pack(p.codes, p.scale, "Q4_0")),
    "Q5_1": WeightType(GGUF_Q5_1, "Q8_1", lambda p: pack(p.codes, p.scale, "Q5_1", p.minimum)),
    "Q4_1": WeightType(GGUF_Q4_1, "Q8_1", lambda p: pack(p.codes, p.scale, "Q4_1", p.minimum)),
    "MXFP4": WeightType(GGUF_MXFP4, "Q8_0", lambda p: pack_mxfp4(p.codes, p.scale)),
    "Q6_K": WeightType(GGUF_Q6_K, "Q8_K", lambda p: pack_q6_k(p.codes, p.scale, p.outer)),
    "Q5_K": WeightType(GGUF_Q5_K, "Q8_K", lambda p: pack_q4_k(*p, bits=5)),
    "Q4_K": WeightType(GGUF_Q4_K, "Q8_K", lambda p: pack_q4_k(*p)),
    "Q3_K": WeightType(GGUF_Q3_K, "Q8_K", lambda p: pack_q3_k(p.codes, p.scale, p.outer)),
    "Q2_K": WeightType(GGUF_Q2_K, "Q8_K", lambda p: pack_q2_k(*p)),
}
"""Name of a type -> the type."""

__all__ = ["WEIGHTS", "Parts", "WeightType"]
