"""Write pools and means as layers of ncnn, in float32."""

from __future__ import annotations

from typing import Any

from qfunc.lowering.ncnn.builder import Blob
from qfunc.lowering.ncnn.elementwise import axis_of
from qfunc.lowering.ncnn.images import image, signal
from qfunc.lowering.ncnn.linear import reshaped_like
from qfunc.lowering.ncnn.writer import OpContext
from qfunc.lowering.windows import Window, window, with_ceil_mode


def max_pool(step: OpContext) -> None:
    """Write Pooling by the maximum."""
    w, x = _window(step)
    if w.dilation != (1, 1):
        raise step.refuse(f"a maximum over a window dilated by {w.dilation}", "no dilation", "Use dilation=1.")
    _pooled(step, x, w, {0: 0})


def average_pool(step: OpContext) -> None:
    """Write Pooling by the mean of the entries inside the image, or of the whole window."""
    w, x = _window(step)
    pads = step.attribute("pads") or ()
    counts_all = bool(step.attribute("count_include_pad", 0)) and any(pads)
    padding_after = [0, 0, *(int(p) for p in pads[len(pads) // 2 :])][-2:]
    more = any(a > b for a, b in zip(w.after, padding_after, strict=True))
    if counts_all and more:
        found = f"an average of {w.kernel} entries, fewer at the end"
        raise step.refuse(found, "whole windows, or only entries inside", "Use ceil_mode=False.")
    _pooled(step, x, w, {0: 1, 6: int(counts_all)})


def _window(step: OpContext) -> tuple[Window, Blob]:
    kernel = step.attribute("kernel_shape")
    w, x = window(step, kernel), image(step, step.input(), len(kernel))
    return with_ceil_mode(step, w, x.shape[1:]), x


def _pooled(step: OpContext, x: Blob, w: Window, how: dict[int, Any]) -> None:
    rank = len(step.attribute("kernel_shape"))
    parameters = {
        **how, 1: w.kernel[1], 11: w.kernel[0], 2: w.stride[1], 12: w.stride[0],
        3: w.before[1], 13: w.before[0], 14: w.after[1], 15: w.after[0], 5: 1,
    }  # fmt: skip
    shape = (x.shape[0], *signal(step.shape[1:], rank))
    blob = step.file.layer("Pooling", [x], step.output, shape, dict(sorted(parameters.items())))
    step.keep(reshaped_like(step, blob))


def global_average_pool(step: OpContext) -> None:
    """Write global Pooling."""
    x = step.input()
    x = image(step, x, len(x.shape) - 1)
    blob = step.layer("Pooling", [x], "", x.shape[:1], p0=1, p4=1)
    step.keep(reshaped_like(step, blob))


def reduced(op: int) -> Any:
    """Return the writer of the Reduction with that number; a mean over height and width is a pool."""

    def write(step: OpContext) -> None:
        axes = step.constant(1) if len(step.node.input) > 1 else step.attribute("axes")
        x = step.input()
        places = list(range(len(x.shape))) if axes is None else sorted(axis_of(step, int(a)) for a in axes)
        if op == 3 and len(x.shape) == 3 and places == [1, 2]:
            return global_average_pool(step)
        keep = int(step.attribute("keepdims", 1))
        shape = [1 if i in places else n for i, n in enumerate(x.shape) if keep or i not in places] or [1]
        blob = step.layer("Reduction", [x], "", shape, p0=op, p1=0, p2=1.0, p3=places, p4=keep, p5=1)
        return step.keep(reshaped_like(step, blob))

    return write


__all__ = ["average_pool", "global_average_pool", "max_pool", "reduced"]
