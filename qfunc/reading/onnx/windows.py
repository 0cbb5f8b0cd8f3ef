"""The padding of windows: pads that differ at the two ends, and auto_pad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F

from qfunc.reading.node import NodeReader


def padding_of(
    r: NodeReader, kernel: Sequence[int | None], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the padding before and after each axis.

    SAME pads d (k - 1) + 1 - s entries less what the size leaves over: max((ceil(n / s) - 1) s + d (k - 1) + 1 - n, 0).

    Raises:
        CaptureError: it depends on a size that varies.
    """
    rank, auto = len(stride), r.attribute("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        pads = [int(p) for p in r.attribute("pads", [0] * 2 * rank)]
        return pads[:rank], pads[rank:]
    if auto == "VALID":
        return [0] * rank, [0] * rank
    total = []
    for axis, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True)):
        n = r.length(axis + 2) if s != 1 else 1
        if n is None or k is None:
            raise r.refuse(
                f"auto_pad={auto!r} for sizes that vary", "known sizes, or a stride of 1", r.network.how_to_fix_sizes
            )
        total.append(max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0))
    less, rest = [t // 2 for t in total], [t - t // 2 for t in total]
    return (less, rest) if auto == "SAME_UPPER" else (rest, less)


def split_padding(r: NodeReader, x: Any, begin: Sequence[int], end: Sequence[int], value: float) -> tuple[Any, tuple[int, ...]]:
    """Return x, padded if the two ends differ, and the padding that is left to the op."""
    if list(begin) == list(end) and min(begin, default=0) >= 0:
        return x, tuple(begin)
    return pad(r, x, begin, end, value), (0,) * len(begin)


def pad(r: NodeReader, x: Any, begin: Sequence[int], end: Sequence[int], value: float) -> Any:
    """Return x padded along its last axes."""
    pads = [p for b, e in zip(reversed(begin), reversed(end), strict=True) for p in (b, e)]
    return r.call(F.pad, x, pads, "constant", value)
