"""Windows over images in TOSA: whole steps only, so that what no window reaches is cut away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.tosa.builder import TosaBuilder


def around(fields: dict[str, Any]) -> list[int]:
    """Return the padding above, below, left and right of an image."""
    if fields["padding"] == "VALID":
        return [0, 0, 0, 0]
    top, right, bottom, left = fields["padding"]
    return [int(v) for v in (top, bottom, left, right)]


def fit_windows(
    graph: TosaBuilder, x: NhwcTensor, kernel: Sequence[int], fields: dict[str, Any], name: str
) -> tuple[NhwcTensor, list[int]]:
    """Return (the image, its padding) such that the last window ends where the image does.

    Args:
        kernel: The dilated sizes of a window.
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


def cut(graph: TosaBuilder, x: NhwcTensor, out: NhwcTensor, begin: Sequence[int]) -> None:
    """SLICE: so many entries as `out` has, from `begin` on."""
    graph.node("SLICE", [x, graph.shape(begin), graph.shape(out.shape)], out)


def reshaped(graph: TosaBuilder, x: NhwcTensor, shape: Sequence[int], out: NhwcTensor | str) -> NhwcTensor:
    """RESHAPE, as an existing tensor or a new one of that name."""
    made = graph.tensor(out, shape, x.qparams) if isinstance(out, str) else out
    graph.node("RESHAPE", [x, graph.shape(made.shape)], made)
    return made


def joined(graph: TosaBuilder, parts: Sequence[NhwcTensor], out: NhwcTensor, axis: int) -> None:
    """CONCAT."""
    graph.node("CONCAT", list(parts), out, axis=axis)


__all__ = ["around", "cut", "fit_windows", "joined", "reshaped"]
