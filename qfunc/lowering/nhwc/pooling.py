"""Write pools and reductions as TFLite's operators."""

from __future__ import annotations

from collections.abc import Callable

from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.images import Padding, image, out_shape, output_image, padded, same, to_signal
from qfunc.lowering.nhwc.shape import axis_at
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.windows import Window, window, with_ceil_mode


def max_pool(step: OpContext) -> None:
    """Write MAX_POOL_2D."""
    step.on_codes(0, fuses=True, same=True)
    x = image(step, step.input())
    w = with_ceil_mode(step, window(step, step.attribute("kernel_shape")), x.shape[1:3])
    if w.dilation != (1, 1) and not step.file.any_padding:
        raise step.refuse(f"a maximum over a window dilated by {w.dilation}", "no dilation", "Use dilation=1.")
    x, padding = padded(step, x, w, lowest=True)
    _pool(step, "MAX_POOL_2D", x, w, padding)


def average_pool(step: OpContext) -> None:
    """Write AVERAGE_POOL_2D, which divides by the number of entries inside the image."""
    step.on_codes(0, fuses=True, same=True)
    x = image(step, step.input())
    w = with_ceil_mode(step, window(step, step.attribute("kernel_shape")), x.shape[1:3])
    whole = not any((*w.before, *w.after)) or bool(step.attribute("count_include_pad", 0) and not step.attribute("ceil_mode"))
    inside = step.file.any_padding and not (step.attribute("count_include_pad", 0) and any(step.attribute("pads") or ()))
    if not whole and not inside and not same(w, x.shape[1:3]):
        found = f"an average of {w.kernel} entries, fewer at the border, padded by {w.before} and {w.after}"
        raise step.refuse(found, "SAME or no padding", "Use count_include_pad=True and ceil_mode=False.")
    padding: Padding = "VALID"
    if whole and any((*w.before, *w.after)):
        pairs = [[0, 0], *([b, a] for b, a in zip(w.before, w.after, strict=True)), [0, 0]]
        output = step.inner("padded", [n + sum(p) for n, p in zip(x.shape, pairs, strict=True)], x, last=True)
        step.file.operator("PAD", [x, step.file.integers(pairs, f"{step.name}.pads")], [output], "PadOptions")
        x = output
    else:
        x, padding = padded(step, x, w)
    _pool(step, "AVERAGE_POOL_2D", x, w, padding)


def _pool(step: OpContext, op: str, x: NhwcTensor, w: Window, padding: Padding) -> None:
    output, result = output_image(step, out_shape(step, x.shape[-1]))
    dilation = {"dilationH": w.dilation[0], "dilationW": w.dilation[1]} if step.file.any_padding else {}
    step.file.operator(
        op, [x], [output], "Pool2DOptions", padding=padding,
        filterHeight=w.kernel[0], filterWidth=w.kernel[1], strideH=w.stride[0], strideW=w.stride[1],
        fusedActivationFunction=step.activation, **dilation,
    )  # fmt: skip
    to_signal(step, output, result)


def global_average_pool(step: OpContext) -> None:
    """Write MEAN over all axes after the channels."""
    _reduced(step, "MEAN", list(range(2, len(step.shape))), True)


def reduced(op: str) -> Callable[[OpContext], None]:
    """Return the writer of a reduction over some axes: MEAN, SUM, REDUCE_MAX or REDUCE_MIN."""

    def write(step: OpContext) -> None:
        axes = step.constant(1) if len(step.node.input) > 1 else step.attribute("axes")
        keep = bool(step.attribute("keepdims", 1))
        rank = len(step.writer.tensor(step.node.input[0]).shape)
        _reduced(step, op, list(range(rank)) if axes is None else [int(a) % rank for a in axes], keep)

    return write


def _reduced(step: OpContext, op: str, axes: list[int], keep: bool) -> None:
    if op == "MEAN":
        step.on_codes(0)
    x = step.input()
    images = set(range(2, len(x.shape))) <= set(axes)  # then the remaining axes have the same order in both layouts
    if not keep and not images:
        x = step.writer.plain(x)
    at = sorted(axis_at(a, x) for a in axes)
    shape = [1 if i in at else n for i, n in enumerate(x.shape) if keep or i not in at]
    axes_tensor = step.file.integers(at, f"{step.name}.axes")
    output = step.result(shape, last=x.last and keep)
    # With keepDims the optimised kernels use another MEAN, which rounds z_x s_x / s_y separately.
    inner = step.inner("mean", [n for i, n in enumerate(x.shape) if i not in at]) if keep else output
    step.file.operator(op, [x, axes_tensor], [inner], "ReducerOptions", keepDims=False)
    if keep:
        step.reshaped(inner, shape, output)


__all__ = ["average_pool", "global_average_pool", "max_pool", "reduced"]
