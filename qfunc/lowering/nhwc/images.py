"""Images in a .tflite: four axes, channels last, and the paddings SAME and VALID."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.windows import Window


def image(step: OpContext, x: NhwcTensor) -> NhwcTensor:
    """Return a tensor as an image: channels last, with a height of 1 if it is a signal."""
    x = step.writer.channels_last(x)
    if len(x.shape) != 3:
        return x
    shape = (x.shape[0], 1, *x.shape[1:])
    batch = _place(step.source.varies(step.node.input[0]), (0, 3, 2))
    return step.reshaped(x, shape, step.inner("row", shape, x, last=True), batch)


def output_image(step: OpContext, shape: Sequence[int]) -> tuple[NhwcTensor, NhwcTensor]:
    """Return (the image that an operator writes, the op's result). `to_signal` computes the result from the image."""
    if len(step.shape) == 4:
        output = step.result(shape, last=True)
        return output, output
    inner = step.inner("rows", shape, last=True)
    return inner, step.result((shape[0], *shape[2:]), last=True)


def to_signal(step: OpContext, output: NhwcTensor, result: NhwcTensor) -> None:
    """Write a RESHAPE from an image of one row to a signal, unless both are one tensor."""
    if output is not result:
        step.reshaped(output, result.shape, result, _place(step.source.varies(step.output), (0, 2, 1)))


def _place(varies: int | None, places: tuple[int, int, int]) -> int | None:
    # The batch axis of a signal [N, C, W] in the file, whose axes have these places.
    return None if varies is None else places[varies]


def out_shape(step: OpContext, channels: int) -> tuple[int, ...]:
    """Return the shape of the image that an op computes, with its channels last."""
    spatial = step.shape[2:]
    return (step.shape[0], *[1] * (2 - len(spatial)), *spatial, channels)


def same(w: Window, size: Sequence[int]) -> bool:
    """Return True if TFLite's padding SAME equals the padding of the window."""
    return all(_around(size[i], w, i) == (w.before[i], w.after[i]) for i in (0, 1))


def _around(size: int, w: Window, i: int) -> tuple[int, int]:
    total = max((-(-size // w.stride[i]) - 1) * w.stride[i] + w.dilation[i] * (w.kernel[i] - 1) + 1 - size, 0)
    return total // 2, total - total // 2


Padding = str | tuple[int, int, int, int]
"""The name of a padding in TFLite; or the padding above, right, below and left of the image, if the file can have it."""


def padded(step: OpContext, x: NhwcTensor, w: Window, lowest: bool = False) -> tuple[NhwcTensor, Padding]:
    """Return (image, padding of the operator). If the operator cannot pad the image, a PAD is written.

    Args:
        lowest: Pad with the least value instead of 0, for a maximum.
    """
    around = [*w.before, *w.after]
    if step.file.any_padding:
        return x, (w.before[0], w.after[1], w.after[0], w.before[1])
    if not any(around):
        return x, "VALID"
    if same(w, x.shape[1:3]) and not (lowest and w.dilation != (1, 1)):  # no pool has a dilation
        return x, "SAME"
    pairs = [[0, 0], *([b, a] for b, a in zip(w.before, w.after, strict=True)), [0, 0]]
    shape = [n + sum(p) for n, p in zip(x.shape, pairs, strict=True)]
    output = step.inner("padded", shape, x, last=True)
    inputs = [x, step.file.integers(pairs, f"{step.name}.pads")]
    if lowest:
        codes = step.file.code_type
        value = np.array([np.iinfo(codes).min], codes) if x.qparams else np.array([np.finfo(np.float32).min], np.float32)
        inputs.append(step.file.tensor(f"{step.name}.lowest", (1,), x.qparams, value=value))
    step.file.operator("PADV2" if lowest else "PAD", inputs, [output], "PadV2Options" if lowest else "PadOptions")
    return output, "VALID"
