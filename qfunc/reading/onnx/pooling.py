"""Read pools."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from qfunc.reading.node import NodeReader, Reader
from qfunc.reading.onnx.windows import pad, padding_of, split_padding

_LARGEST = {1: torch.max_pool1d, 2: torch.max_pool2d, 3: torch.max_pool3d}
_MEAN = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def _window(r: NodeReader) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    kernel = [int(k) for k in r.attribute("kernel_shape")]
    stride, dilation = ([int(v) for v in r.attribute(name, [1] * len(kernel))] for name in ("strides", "dilations"))
    if len(kernel) not in _MEAN:
        raise r.refuse(f"windows of {len(kernel)} axes", "1 to 3", "Leave the op out: read(..., outputs=(...)).")
    begin, end = padding_of(r, kernel, stride, dilation)
    return kernel, stride, dilation, begin, end


def _max_pool(r: NodeReader) -> Any:
    kernel, stride, dilation, begin, end = _window(r)
    if len(r.outputs) > 1 and r.outputs[1]:
        raise r.refuse("the places of the maxima", "the maxima alone", "Read a part of the file: read(..., outputs=(...)).")
    x, padding = split_padding(r, r.x(), begin, end, -math.inf)
    if any(p > k // 2 for p, k in zip(padding, kernel, strict=True)):
        x, padding = pad(r, x, begin, end, -math.inf), (0,) * len(kernel)
    ceil = bool(r.attribute("ceil_mode", 0))
    return r.call(_LARGEST[len(kernel)], x, tuple(kernel), tuple(stride), padding, tuple(dilation), ceil)


def _average_pool(r: NodeReader) -> Any:
    kernel, stride, dilation, begin, end = _window(r)
    if any(d != 1 for d in dilation):
        raise r.refuse(f"dilations {dilation}", "windows without gaps", "Write it as a convolution.")
    ceil, counted = bool(r.attribute("ceil_mode", 0)), bool(r.attribute("count_include_pad", 0))
    pool, args = _MEAN[len(kernel)], (tuple(kernel), tuple(stride))
    if begin == end and all(p <= k // 2 for p, k in zip(begin, kernel, strict=True)):
        return r.call(pool, r.x(), *args, tuple(begin), ceil, counted)
    padded = pad(r, r.x(), begin, end, 0.0)
    mean = r.call(pool, padded, *args, (0,) * len(kernel), ceil, True)
    if counted:
        return mean
    # Without the padding, each mean is divided by the share of the window that is inside of the image.
    sizes = [r.length(axis + 2) for axis in range(len(kernel))]
    if None in sizes:
        raise r.refuse(
            f"pads {begin + end} that are not counted, for sizes that vary", "known sizes", r.network.how_to_fix_sizes
        )
    ones = F.pad(torch.ones(1, 1, *sizes), [p for b, e in zip(begin[::-1], end[::-1], strict=True) for p in (b, e)])  # type: ignore[arg-type]
    share: Any = pool(ones, *args, (0,) * len(kernel), ceil, True)
    return r.call(torch.div, mean, r.call(torch.clone, share))


def _over_image(function: Any) -> Reader:
    def read(r: NodeReader) -> Any:
        axes = tuple(range(2, r.known_rank()))
        return r.call(function, r.x(), axes, True)

    return read


def _lp_pool(r: NodeReader) -> Any:
    kernel, stride, dilation, begin, end = _window(r)
    order, count = float(r.attribute("p", 2)), math.prod(kernel)
    powers = r.call(torch.pow, r.call(torch.abs, r.x()), order)
    x, padding = split_padding(r, powers, begin, end, 0.0)
    if any(p > k // 2 for p, k in zip(padding, kernel, strict=True)):
        x, padding = pad(r, powers, begin, end, 0.0), (0,) * len(kernel)
    if any(d != 1 for d in dilation):
        raise r.refuse(f"dilations {dilation}", "windows without gaps", "Write it as a convolution.")
    ceil = bool(r.attribute("ceil_mode", 0))
    mean = r.call(_MEAN[len(kernel)], x, tuple(kernel), tuple(stride), padding, ceil, True)
    return r.call(torch.pow, r.call(torch.mul, mean, float(count)), 1 / order)


def _global_lp_pool(r: NodeReader) -> Any:
    axes = list(range(2, r.known_rank()))
    return r.call(torch.linalg.vector_norm, r.x(), float(r.attribute("p", 2)), axes, True)


READERS: dict[str, Reader] = {
    "MaxPool": _max_pool, "AveragePool": _average_pool, "GlobalAveragePool": _over_image(torch.mean),
    "GlobalMaxPool": _over_image(torch.amax), "LpPool": _lp_pool, "GlobalLpPool": _global_lp_pool,
}  # fmt: skip
"""The readers of this family, by operator."""
