"""Images in ncnn. A signal is an image of one row."""

from __future__ import annotations

from collections.abc import Sequence

from qfunc.lowering.ncnn.builder import Blob
from qfunc.lowering.ncnn.writer import OpContext


def image(step: OpContext, blob: Blob, rank: int) -> Blob:
    """Return an image [C, H, W]; a signal [C, L] becomes [C, 1, L]."""
    return blob if rank == 2 else step.rows_of(blob, (blob.shape[0], 1, *blob.shape[1:]))


def signal(sizes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the sizes of a result with the given number of axes: (height, width), or the length of a signal."""
    return tuple(sizes) if rank == 2 else (1, *sizes)


__all__ = ["image", "signal"]
