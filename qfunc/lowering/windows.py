"""Windows of convolutions and pools over images: kernel, stride, dilation and padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import onnx
from attrs import evolve, frozen

from qfunc.errors import DeployError


class AxisWindow(Protocol):
    """One op on its way into a file."""

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the node."""
        ...

    def refuse(self, found: str, wanted: str, do: str) -> DeployError:
        """Return the error of an op that the file cannot represent."""
        ...


@frozen
class Window:
    """A window over an image: sizes along height and width, and the padding before and after the image."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    before: tuple[int, int]
    after: tuple[int, int]


def window(step: AxisWindow, kernel: Sequence[int]) -> Window:
    """Return the window of a convolution or pool; signals are images of one row.

    Raises:
        DeployError: more axes than two.
    """
    rank = len(kernel)
    if rank > 2:
        raise step.refuse(f"windows over {rank} axes", "one or two", "Deploy Q/DQ ONNX by edit.deploy(QdqLowering()).")

    def two(values: Sequence[int], fill: int) -> tuple[int, int]:
        first, last = ([fill] * 2 + [int(v) for v in values])[-2:]
        return first, last

    pads = list(step.attribute("pads") or [0] * 2 * rank)
    strides, dilations = (list(step.attribute(n) or [1] * rank) for n in ("strides", "dilations"))
    return Window(two(kernel, 1), two(strides, 1), two(dilations, 1), two(pads[:rank], 0), two(pads[rank:], 0))


def with_ceil_mode(step: AxisWindow, w: Window, size: Sequence[int]) -> Window:
    """Return the window of a pool with the padding that `ceil_mode` adds after an image of that height and width."""
    if not step.attribute("ceil_mode"):
        return w
    below, right = (w.after[i] + _missing(size[i], w, i) for i in (0, 1))
    return evolve(w, after=(below, right))


def _missing(size: int, w: Window, i: int) -> int:
    # The padding that completes the last window, unless that window begins after the image.
    span = size + w.before[i] + w.after[i] - w.dilation[i] * (w.kernel[i] - 1) - 1
    outputs = -(-span // w.stride[i]) + 1
    if (outputs - 1) * w.stride[i] >= size + w.before[i]:
        return 0
    return (outputs - 1) * w.stride[i] - span


def set_floor_mode(model: onnx.ModelProto) -> None:
    """Replace `ceil_mode` of pools by padding after the image, in place, where the sizes are known.

    onnx infers a window that begins after the image, which PyTorch and ONNX Runtime omit.
    """
    for node in model.graph.node:
        fields = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type not in ("MaxPool", "AveragePool") or not fields.get("ceil_mode"):
            continue
        sizes = _sizes(model, node.input[0])
        if sizes is None:
            continue
        kernel = fields["kernel_shape"]
        strides, dilations, pads = (fields.get(n) or [f] * len(kernel) * k for n, f, k in _DEFAULTS)
        before, after = pads[: len(kernel)], list(pads[len(kernel) :])
        for i, (n, k, s, d, b) in enumerate(zip(sizes[2:], kernel, strides, dilations, before, strict=True)):
            span = n + b + after[i] - d * (k - 1) - 1
            count = -(-span // s)
            after[i] += count * s - span if count * s < n + b else 0
        kept = [a for a in node.attribute if a.name not in ("ceil_mode", "pads")]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute("pads", [*before, *after])])


_DEFAULTS = (("strides", 1, 1), ("dilations", 1, 1), ("pads", 0, 2))


def _sizes(model: onnx.ModelProto, name: str) -> list[int] | None:
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    for info in (*graph.value_info, *graph.input):
        if info.name == name:
            dims = info.type.tensor_type.shape.dim
            return [d.dim_value for d in dims] if all(d.HasField("dim_value") for d in dims) else None
    return None
