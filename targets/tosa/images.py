"""Windows over images in TOSA, whose strides must divide the padded image: rows that no window reads are cut away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.targets.tosa.builder import TosaBuilder


def padding_of(fields: dict[str, Any]) -> list[int]:
    """Return the padding above, below, left and right of an image."""
    if fields["padding"] == "VALID":
        return [0, 0, 0, 0]
    top, right, bottom, left = fields["padding"]
    return [int(v) for v in (top, bottom, left, right)]


def fit_windows(
    graph: TosaBuilder, x: NhwcTensor, kernel: Sequence[int], fields: dict[str, Any], name: str
) -> tuple[NhwcTensor, list[int]]:
    """Return (the image, its padding) such that the last window ends at the last row and column.

    Args:
        kernel: The dilated sizes of a window.
    """
    padding, sizes = padding_of(fields), list(x.shape)
    for i, stride in enumerate((fields["strideH"], fields["strideW"])):
        surplus = (sizes[1 + i] + padding[2 * i] + padding[2 * i + 1] - kernel[i]) % stride
        from_padding = min(surplus, padding[2 * i + 1])
        padding[2 * i + 1] -= from_padding
        sizes[1 + i] -= surplus - from_padding
    if tuple(sizes) == x.shape:
        return x, padding
    fitted = graph.tensor_like(x, f"{name}.fitted", sizes)
    write_slice(graph, x, fitted, [0, 0, 0, 0])
    return fitted, padding


def write_slice(graph: TosaBuilder, x: NhwcTensor, out: NhwcTensor, begin: Sequence[int]) -> None:
    """Write SLICE: from `begin` on, as many entries as `out` has."""
    graph.node("SLICE", [x, graph.shape(begin), graph.shape(out.shape)], out)


def write_reshape(graph: TosaBuilder, x: NhwcTensor, shape: Sequence[int], out: NhwcTensor | str) -> NhwcTensor:
    """Write RESHAPE into `out`, a tensor or the name of a new one, and return it."""
    result = graph.tensor(out, shape, x.qparams) if isinstance(out, str) else out
    graph.node("RESHAPE", [x, graph.shape(result.shape)], result)
    return result


def write_concat(graph: TosaBuilder, parts: Sequence[NhwcTensor], out: NhwcTensor, axis: int) -> None:
    """Write CONCAT."""
    graph.node("CONCAT", list(parts), out, axis=axis)
