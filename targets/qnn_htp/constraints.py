"""The constraints of the HTP: windows that `quantize` refuses by their attributes, and scales that `deploy` refuses."""

from __future__ import annotations

from typing import Any

import numpy as np

from qfunc.errors import DeployError
from qfunc.specs import Op, Refuse, Where

DIFFERS = "onnxruntime-qnn 2.7, measured: the HTP's results differ for these attributes"
ON_CPU = "onnxruntime-qnn 2.7, measured: the provider assigns it to the CPU"


def has_tiles_beyond_border(op: Any) -> bool:
    """Return True if the windows of a pool adjoin each other and may extend beyond the image.

    >>> from types import SimpleNamespace
    >>> pool = {"kernel_size": 2, "stride": (2, 2), "count_include_pad": True, "ceil_mode": False}
    >>> [has_tiles_beyond_border(SimpleNamespace(attributes=pool | {"padding": p})) for p in (0, 1)]
    [False, True]
    """
    attributes = op.attributes
    axes = attributes.get("spatial", 2)
    sizes = (attributes["kernel_size"], attributes["stride"])
    kernel, stride = (size if isinstance(size, tuple) else (size,) * axes for size in sizes)
    is_tiled = attributes["stride"] in (None, ()) or kernel == stride
    padded = attributes["count_include_pad"] and attributes["padding"] not in (0, (0,) * axes)
    return is_tiled and bool(padded or attributes["ceil_mode"])


def has_window_of_padding(op: Any) -> bool:
    """Return True if a convolution has windows that contain only padding.

    >>> from types import SimpleNamespace
    >>> conv = {"kernel": (3, 2), "dilation": (1, 1)}
    >>> [has_window_of_padding(SimpleNamespace(attributes=conv | {"padding": (2, p)})) for p in (1, 2)]
    [False, True]
    """
    attributes = op.attributes
    padding = attributes["padding"]
    if not isinstance(padding, tuple):
        return False
    axes = zip(padding, attributes["kernel"], attributes["dilation"], strict=True)
    return any(p > d * (k - 1) for p, k, d in axes)


def has_unreached_border(op: Any) -> bool:
    """Return True if no window reaches some entries at the border of a transposed convolution.

    >>> from types import SimpleNamespace
    >>> conv = {"padding": (1, 0)}
    >>> [has_unreached_border(SimpleNamespace(attributes=conv | {"output_padding": (1, p)})) for p in (0, 1)]
    [False, True]
    """
    attributes = op.attributes
    return any(o > p for o, p in zip(attributes["output_padding"], attributes["padding"], strict=True))


def has_one_output_per_channel(attributes: Any) -> bool:
    """Return True if a depthwise convolution has one output channel for each input channel."""
    return bool(attributes["depthwise"]) and attributes["out_channels"] == attributes["groups"]


def is_strided_and_dilated(op: Any) -> bool:
    """Return True if a depthwise convolution has both a stride and a dilation above 1.

    False with several outputs per channel, and for a 3x3 kernel with stride 2 and dilation 2, which the HTP supports.

    >>> from types import SimpleNamespace
    >>> conv = {"kernel": (3, 1), "dilation": (2, 2), "depthwise": True, "groups": 4, "out_channels": 4}
    >>> [is_strided_and_dilated(SimpleNamespace(attributes=conv | {"stride": (s, s)})) for s in (1, 2)]
    [False, True]
    """
    attributes = op.attributes
    supported = (attributes["kernel"], attributes["stride"], attributes["dilation"]) == ((3, 3), (2, 2), (2, 2))
    is_both = max(attributes["stride"]) > 1 and max(attributes["dilation"]) > 1 and not supported
    return has_one_output_per_channel(attributes) and is_both


def has_small_strided_window(op: Any) -> bool:
    """Return True if a depthwise convolution of 2 to 4 channels has a 1x1 or 2x2 kernel and a stride of 2.

    >>> from types import SimpleNamespace
    >>> conv = {"kernel": (2, 2), "stride": (2, 2), "dilation": (1, 1), "depthwise": True}
    >>> [has_small_strided_window(SimpleNamespace(attributes=conv | {"groups": c, "out_channels": c})) for c in (4, 5)]
    [True, False]
    """
    attributes = op.attributes
    small_window = attributes["kernel"] in ((1, 1), (2, 2)) and attributes["stride"] == (2, 2)
    return has_one_output_per_channel(attributes) and attributes["groups"] <= 4 and small_window


LEGALITY = (
    Refuse(
        Op("avg_pool") & Where(has_tiles_beyond_border),
        because=DIFFERS,
        do="Use a stride other than the kernel size, or count_include_pad=False and ceil_mode=False.",
    ),
    Refuse(Op("conv") & Where(has_window_of_padding), because=DIFFERS, do="Use a padding smaller than the dilated kernel."),
    Refuse(
        Op("conv") & Where(is_strided_and_dilated),
        because=ON_CPU,
        do="Use a stride or a dilation, not both, or two outputs per channel.",
    ),
    Refuse(Op("conv") & Where(has_small_strided_window), because=DIFFERS, do="Use at least five channels, or a 3x3 kernel."),
    Refuse(
        Op("conv_transpose") & Where(has_unreached_border), because=DIFFERS, do="Use an output_padding of at most the padding."
    ),
)

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
LIMIT = 2.0**8


def require_scales(model: Any) -> None:
    """Raise if s_x s_w / s_y of a product is 2^8 or more in a channel, because the HTP then returns the zero point.

    Raises:
        DeployError: names the tensor.
    """
    # Import here, so that `import qfunc` does not import onnx.
    from qfunc.lowering.qdq.reader import QdqModel

    source = QdqModel(model)
    for node in source.graph.node:
        if node.op_type not in PRODUCTS:
            continue
        quantizers = [n for n in source.readers.get(node.output[0], ()) if n.op_type == "QuantizeLinear"]
        dequantizers = [source.dequantizer(name) for name in node.input[:2]]
        if quantizers and None not in dequantizers:
            _require_scale(source, node.output[0], [*dequantizers, quantizers[-1]])


def _require_scale(source: Any, tensor: str, nodes: list[Any]) -> None:
    x, weight, y = (np.max(source.constants[n.input[1]]).astype(np.float64) for n in nodes)
    if source.constants[nodes[2].input[2]].itemsize == 1 and (ratio := x * weight / y) >= LIMIT:
        do = "Calibrate on inputs of the deployed range."
        found = f"s_x * s_w / s_y = {ratio:g}"
        raise DeployError(where=f"tensor {tensor!r}", found=found, wanted="a ratio below 2^8", do=do)
