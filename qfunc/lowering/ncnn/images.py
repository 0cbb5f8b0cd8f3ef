"""Images in ncnn: a signal is one of a single row."""

from __future__ import annotations

from collections.abc import Sequence

from qfunc.lowering.ncnn.builder import Blob
from qfunc.lowering.ncnn.writer import OpContext


def image(step: OpContext, blob: Blob, rank: int) -> Blob:
    """Return an image [C, H, W]; a signal [C, L] is one of a single row."""
    return blob if rank == 2 else step.rows_of(blob, (blob.shape[0], 1, *blob.shape[1:]))


def signal(sizes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the height and width of a result of that many axes."""
    return tuple(sizes) if rank == 2 else (1, *sizes)


__all__ = ["image", "signal"]
