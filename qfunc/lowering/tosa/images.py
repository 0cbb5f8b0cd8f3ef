"""Windows over images in TOSA: whole steps only, so that what no window reaches is cut away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qfunc.lowering.nhwc.tensor import Held
from qfunc.lowering.tosa.builder import TosaGraph


def around(fields: dict[str, Any]) -> list[int]:
    """How much stands above, below, left and right of an image."""
    if fields["padding"] == "VALID":
        return [0, 0, 0, 0]
    top, right, bottom, left = fields["padding"]
    return [int(v) for v in (top, bottom, left, right)]


def fitted(graph: TosaGraph, x: Held, kernel: Sequence[int], fields: dict[str, Any], name: str) -> tuple[Held, list[int]]:
    """(the image, what stands around it) such that the last window ends where the image does.

    Args:
        kernel: The sizes of a window as it lies, dilated.
    """
    pad, sizes = around(fields), list(x.shape)
    for i, stride in enumerate((fields["strideH"], fields["strideW"])):
        over = (sizes[1 + i] + pad[2 * i] + pad[2 * i + 1] - kernel[i]) % stride
        less = min(over, pad[2 * i + 1])
        pad[2 * i + 1] -= less
        sizes[1 + i] -= over - less
    if tuple(sizes) == x.shape:
        return x, pad
    made = graph.inner(x, f"{name}.fitted", sizes)
    cut(graph, x, made, [0, 0, 0, 0])
    return made, pad


def cut(graph: TosaGraph, x: Held, out: Held, begin: Sequence[int]) -> None:
    """SLICE: so many entries as `out` has, from `begin` on."""
    graph.node("SLICE", [x, graph.shape(begin), graph.shape(out.shape)], out)


def reshaped(graph: TosaGraph, x: Held, shape: Sequence[int], out: Held | str) -> Held:
    """RESHAPE, as an existing tensor or a new one of that name."""
    made = graph.tensor(out, shape, x.qparams) if isinstance(out, str) else out
    graph.node("RESHAPE", [x, graph.shape(made.shape)], made)
    return made


def joined(graph: TosaGraph, parts: Sequence[Held], out: Held, axis: int) -> None:
    """CONCAT."""
    graph.node("CONCAT", list(parts), out, axis=axis)


__all__ = ["around", "cut", "fitted", "joined", "reshaped"]
