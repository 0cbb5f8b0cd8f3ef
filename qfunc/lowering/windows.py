"""Windows of convolutions and pools over images: kernel, stride, dilation and padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

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


__all__ = ["AxisWindow", "Window", "with_ceil_mode", "window"]
