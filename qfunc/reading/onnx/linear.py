"""Read convolutions, matrix products and einsum."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from qfunc.reading.node import NodeReader, Reader
from qfunc.reading.onnx.windows import padding_of, split_padding
from qfunc.reading.values import Constant, Value

_CONVOLUTIONS = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
_TRANSPOSED = {1: torch.conv_transpose1d, 2: torch.conv_transpose2d, 3: torch.conv_transpose3d}


def _spatial(r: NodeReader) -> int:
    rank = r.known_rank(1) - 2
    if rank not in _CONVOLUTIONS:
        raise r.refuse(f"a weight of {rank + 2} axes", "3, 4 or 5", "Leave the op out: read(..., outputs=(...)).")
    return rank


def _per_axis(r: NodeReader, name: str, rank: int) -> list[int]:
    return [int(v) for v in r.attribute(name, [1] * rank)]


def _conv(r: NodeReader) -> Any:
    rank = _spatial(r)
    stride, dilation = _per_axis(r, "strides", rank), _per_axis(r, "dilations", rank)
    kernel = [r.length(axis, 1) for axis in range(2, rank + 2)]
    begin, end = padding_of(r, kernel, stride, dilation)
    x, padding = split_padding(r, r.x(), begin, end, 0.0)
    found: Value = r.call(
        _CONVOLUTIONS[rank], x, r.weight(1), r.weight(2), tuple(stride), padding, tuple(dilation), int(r.attribute("group", 1))
    )
    return found


def _conv_transpose(r: NodeReader) -> Any:
    rank = _spatial(r)
    stride, dilation = _per_axis(r, "strides", rank), _per_axis(r, "dilations", rank)
    more = [int(v) for v in r.attribute("output_padding", [0] * rank)]
    kernel = [r.length(axis, 1) for axis in range(2, rank + 2)]
    begin, end = _transposed_padding(r, kernel, stride, dilation, more)
    common = [min(b, e) for b, e in zip(begin, end, strict=True)]
    if any(c < 0 for c in common) or any(p >= max(s, d) for p, s, d in zip(more, stride, dilation, strict=True)):
        raise r.refuse(
            f"pads {begin + end} and output_padding {more}", "pads from 0 on", "Pad or cut the result by an op of its own."
        )
    found: Value = r.call(
        _TRANSPOSED[rank], r.x(), r.weight(1), r.weight(2), tuple(stride), tuple(common), tuple(more),
        int(r.attribute("group", 1)), tuple(dilation),
    )  # fmt: skip
    cuts = [(b - c, c - e) for b, e, c in zip(begin, end, common, strict=True)]
    if any(a or b for a, b in cuts):
        parts = tuple(slice(a or None, b or None) for a, b in cuts)
        found = r.call(torch.Tensor.__getitem__, found, (slice(None), slice(None), *parts))
    return found


def _transposed_padding(
    r: NodeReader, kernel: list[int | None], stride: list[int], dilation: list[int], more: list[int]
) -> tuple[list[int], list[int]]:
    rank, auto = len(stride), r.attribute("auto_pad", "NOTSET")
    wanted = r.attribute("output_shape")
    if wanted is None and auto in ("NOTSET", "VALID"):
        pads = [int(p) for p in r.attribute("pads", [0] * 2 * rank)] if auto == "NOTSET" else [0] * 2 * rank
        return pads[:rank], pads[rank:]
    sizes = [r.length(axis) for axis in range(2, rank + 2)]
    if None in sizes or None in kernel:
        raise r.refuse("output_shape or auto_pad for sizes that vary", "known sizes", r.network.how_to_fix_sizes)
    # pads = stride (n - 1) + output_padding + dilation (k - 1) + 1 - wanted
    whole = [s * (n - 1) + o + d * (k - 1) + 1  # type: ignore[operator]
             for n, s, o, d, k in zip(sizes, stride, more, dilation, kernel, strict=True)]  # fmt: skip
    results = [n * s for n, s in zip(sizes, stride, strict=True)] if wanted is None else list(wanted)[-rank:]  # type: ignore[operator]
    total = [w - int(n) for w, n in zip(whole, results, strict=True)]
    less, rest = [t // 2 for t in total], [t - t // 2 for t in total]
    return (less, rest) if auto == "SAME_UPPER" or (auto == "NOTSET" and wanted is None) else (rest, less)


def _scaled(r: NodeReader, value: Any, factor: float) -> Any:
    return value if factor == 1 else r.call(torch.mul, value, factor)


def _gemm(r: NodeReader) -> Any:
    a, b, c = r.x(0), r.weight(1), r.weight(2)
    if r.attribute("transA", 0):
        a = r.call(torch.transpose, a, 0, 1)
    alpha, beta = float(r.attribute("alpha", 1.0)), float(r.attribute("beta", 1.0))
    if isinstance(b, Constant):
        b = _scaled(r, b, alpha)
        b = Constant(b.tensor, b.name, True)
    else:
        a = _scaled(r, a, alpha)
    transposed, width = bool(r.attribute("transB", 0)), r.length(0 if r.attribute("transB", 0) else 1, 1)
    bias = _bias(r, None if c is None else _scaled(r, c, beta), width)
    if transposed and isinstance(b, Constant) and (bias is None or isinstance(bias, Constant)):
        return r.call(F.linear, a, b, bias)
    if isinstance(b, Constant) and isinstance(bias, Constant):
        return r.call(torch.addmm, bias, a, b)
    product = r.call(torch.matmul, a, r.call(torch.transpose, b, 0, 1) if transposed else b)
    rest = bias if bias is not None else None if c is None else _scaled(r, c, beta)
    return product if rest is None else r.call(torch.add, product, rest)


def _bias(r: NodeReader, c: Any, width: int | None) -> Constant | None:
    # A constant that is the same for each row, as a vector.
    if not isinstance(c, Constant) or width is None or c.tensor.numel() not in (1, width):
        return None
    if c.tensor.ndim == 2 and c.tensor.shape[0] != 1 and width != 1:
        return None
    if c.tensor.numel() == width:
        same = c.tensor.ndim == 1
        return Constant(c.tensor if same else c.tensor.reshape(-1), c.name, True)
    return Constant(c.tensor.reshape(-1).expand(width).contiguous(), c.name, True)


def _matmul(r: NodeReader) -> Any:
    return r.call(torch.matmul, r.weight(0), r.weight(1))


def _einsum(r: NodeReader) -> Any:
    operands = tuple(r.x(i) for i in range(len(r.inputs)))
    if not any(isinstance(o, fx.Node) for o in operands):
        return r.call(torch.einsum, r.attribute("equation"), operands)
    return r.call(torch.einsum, r.attribute("equation").replace(" ", ""), operands)


READERS: dict[str, Reader] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "Gemm": _gemm, "MatMul": _matmul, "Einsum": _einsum,
}  # fmt: skip
"""The readers of this family, by operator."""
