"""Scales and zero points as Q/DQ nodes have them, and the real values of codes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from attrs import frozen

from qfunc.numerics.affine import implies_clamp

Array = np.ndarray[Any, Any]


@frozen
class QParams:
    """real = (code - zero point) * scale, one for the tensor or one for each slice along `axis`.

    With `block`, one for each run of so many entries along `axis`, in the order of the tensor; these may be millions, and are
    arrays of numbers.
    """

    scale: Sequence[float]
    zero_point: Sequence[int]
    axis: int = 0
    block: int | None = None

    def imply(self, bounds: tuple[float | None, float | None], ends: tuple[int, int]) -> bool:
        """Return True if codes that saturate at `ends` do the work of a clamp to `bounds`.

        >>> QParams((0.1,), (-128,)).imply((0.0, None), (-128, 127))
        True
        """
        return implies_clamp(*bounds, torch.tensor(self.scale), torch.tensor(self.zero_point), ends)


def float_numbers(values: Array) -> Sequence[float]:
    """Return the entries of an array as numbers of float32, in 4 bytes each.

    >>> float_numbers(np.array([[0.5, 2.0]]))
    array('f', [0.5, 2.0])
    """
    return array("f", values.astype(np.float32).tobytes())


def dequantized(codes: Array, qparams: QParams) -> Array:
    """Return the real values of codes, in float32."""
    if qparams.block is not None:
        shape = [n // qparams.block if i == qparams.axis % codes.ndim else n for i, n in enumerate(codes.shape)]
        held = (np.array(qparams.scale, np.float32), np.array(qparams.zero_point, np.float32))
        scale, zero = (each.reshape(shape).repeat(qparams.block, qparams.axis) for each in held)
        return np.asarray((codes.astype(np.float32) - zero) * scale, np.float32)
    shape = [-1 if i == qparams.axis % codes.ndim and len(qparams.scale) > 1 else 1 for i in range(codes.ndim)]
    scale = np.array(qparams.scale, np.float32).reshape(shape)
    zero = np.array(qparams.zero_point, np.int64).reshape(shape)
    return np.asarray((codes.astype(np.int64) - zero).astype(np.float32) * scale, np.float32)
