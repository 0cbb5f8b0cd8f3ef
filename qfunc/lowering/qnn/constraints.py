"""Constraints of the HTP: windows that `quantize` refuses by their attributes, and scales that `deploy` refuses."""

from __future__ import annotations

from typing import Any

import numpy as np

from qfunc.errors import DeployError
from qfunc.specs import Op, Refuse, Where

MEASURED = "onnxruntime-qnn 2.7, measured: the HTP takes other values there"
LEFT = "onnxruntime-qnn 2.7, measured: the provider leaves it to the CPU"


def tiles_over_the_border(op: Any) -> bool:
    """Return True if the windows of a pool are side by side and may reach beyond the image.

    >>> from types import SimpleNamespace
    >>> pool = {"kernel_size": 2, "stride": (2, 2), "count_include_pad": True, "ceil_mode": False}
    >>> [tiles_over_the_border(SimpleNamespace(attributes=pool | {"padding": p})) for p in (0, 1)]
    [False, True]
    """
    has = op.attributes
    axes = has.get("spatial", 2)
    kernel, stride = (v if isinstance(v, tuple) else (v,) * axes for v in (has["kernel_size"], has["stride"]))
    side_by_side = has["stride"] in (None, ()) or kernel == stride
    padded = has["count_include_pad"] and has["padding"] not in (0, (0,) * axes)
    return side_by_side and bool(padded or has["ceil_mode"])


def sees_nothing(op: Any) -> bool:
    """Return True if a convolution has windows of padding alone.

    >>> from types import SimpleNamespace
    >>> conv = {"kernel": (3, 2), "dilation": (1, 1)}
    >>> [sees_nothing(SimpleNamespace(attributes=conv | {"padding": (2, p)})) for p in (1, 2)]
    [False, True]
    """
    has = op.attributes
    each = zip(has["padding"], has["kernel"], has["dilation"], strict=True) if isinstance(has["padding"], tuple) else ()
    return any(p > d * (k - 1) for p, k, d in each)


def reaches_nothing(op: Any) -> bool:
    """Return True if a transposed convolution has entries at its border that no window reaches.

    >>> from types import SimpleNamespace
    >>> conv = {"padding": (1, 0)}
    >>> [reaches_nothing(SimpleNamespace(attributes=conv | {"output_padding": (1, p)})) for p in (0, 1)]
    [False, True]
    """
    has = op.attributes
    return any(o > p for o, p in zip(has["output_padding"], has["padding"], strict=True))


def one_output_a_channel(has: Any) -> bool:
    """Return True if a depthwise convolution has one output channel for each input channel."""
    return bool(has["depthwise"]) and has["out_channels"] == has["groups"]


def strides_over_holes(op: Any) -> bool:
    """Return True if a depthwise convolution of one output a channel has strides and dilations, other than 3x3 by 2 and 2.

    >>> from types import SimpleNamespace
    >>> conv = {"kernel": (3, 1), "dilation": (2, 2), "depthwise": True, "groups": 4, "out_channels": 4}
    >>> [strides_over_holes(SimpleNamespace(attributes=conv | {"stride": (s, s)})) for s in (1, 2)]
    [False, True]
    """
    has = op.attributes
    taken = (has["kernel"], has["stride"], has["dilation"]) == ((3, 3), (2, 2), (2, 2))
    return one_output_a_channel(has) and max(has["stride"]) > 1 and max(has["dilation"]) > 1 and not taken


def small_windows_by_two(op: Any) -> bool:
    """Return True if a depthwise convolution of 2 to 4 channels has windows of 1x1 or 2x2 at a stride of 2.

    >>> from types import SimpleNamespace
    >>> conv = {"kernel": (2, 2), "stride": (2, 2), "dilation": (1, 1), "depthwise": True}
    >>> [small_windows_by_two(SimpleNamespace(attributes=conv | {"groups": c, "out_channels": c})) for c in (4, 5)]
    [True, False]
    """
    has = op.attributes
    windows = has["kernel"] in ((1, 1), (2, 2)) and has["stride"] == (2, 2)
    return one_output_a_channel(has) and has["groups"] <= 4 and windows


LEGALITY = (
    Refuse(
        Op("avg_pool") & Where(tiles_over_the_border),
        because=MEASURED,
        do="Use another stride than the window's size, or count_include_pad=False and ceil_mode=False.",
    ),
    Refuse(Op("conv") & Where(sees_nothing), because=MEASURED, do="Pad by less than the window."),
    Refuse(Op("conv") & Where(strides_over_holes), because=LEFT, do="Stride or dilate it, or have two outputs a channel."),
    Refuse(Op("conv") & Where(small_windows_by_two), because=MEASURED, do="Use five channels or more, or windows of 3x3."),
    Refuse(Op("conv_transpose") & Where(reaches_nothing), because=MEASURED, do="Let output_padding be at most the padding."),
)

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
LIMIT = 2.0**8


def require_scales(model: Any) -> None:
    """Raise if s_x s_w / s_y of a product is 2^8 or more in a channel: the HTP then returns the zero point for any sum.

    Raises:
        DeployError: names the tensor.
    """
    # Import here, so that `import qfunc` does not import onnx.
    from qfunc.lowering.qdq_reader import QdqModel

    source = QdqModel(model)
    for node in source.graph.node:
        if node.op_type not in PRODUCTS:
            continue
        quantizers = [n for n in source.readers.get(node.output[0], ()) if n.op_type == "QuantizeLinear"]
        dequantizers = [source.dequantizer(name) for name in node.input[:2]]
        if quantizers and None not in dequantizers:
            _require_scale(source, node.output[0], [*dequantizers, quantizers[-1]])


def _require_scale(source: Any, tensor: str, qdq: list[Any]) -> None:
    x, weight, y = (np.max(source.constants[n.input[1]]).astype(np.float64) for n in qdq)
    if source.constants[qdq[2].input[2]].itemsize == 1 and (ratio := x * weight / y) >= LIMIT:
        do = "Calibrate on values near those it meets."
        found = f"s_x * s_w / s_y of {ratio:g}"
        raise DeployError(where=f"tensor {tensor!r}", found=found, wanted="one below 2^8", do=do)


__all__ = [
    "LEGALITY", "one_output_a_channel", "reaches_nothing", "require_scales", "sees_nothing", "small_windows_by_two",
    "strides_over_holes", "tiles_over_the_border",
]  # fmt: skip
