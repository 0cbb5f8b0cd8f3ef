"""A chip simulator as a vendor would write it: reads the artifact, knows nothing of qfunc; with bugs to order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

Array = NDArray[Any]
Hold = Callable[[Array, Any], Array]
F32 = np.float32


class Chip:
    """Runs a chain of convolutions, max pools, a global average and Gemm on integers.

    `bug`: "" or "ties" (half away from zero), "zero point" (added before rounding), "scale" (that of input
    and output exchanged in global averages).  `hold`: what its accumulator makes of the products of one sum, in the order
    input channel, kernel row, kernel column, along the last axis of an array, and of the bias; None: the exact sum.
    """

    def __init__(self, bug: str = "", hold: Hold | None = None) -> None:
        self.bug, self.hold = bug, hold

    def __call__(self, artifact: Any, inputs: Any) -> list[Array]:
        """The outputs of a model.onnx for one batch."""
        graph = onnx.load_from_string(artifact.files["model.onnx"]).graph
        held: dict[str, Any] = {i.name: onnx.numpy_helper.to_array(i) for i in graph.initializer}
        held |= {i.name: v.numpy() for i, v in zip(graph.input, inputs, strict=True)}
        for node in graph.node:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            held[node.output[0]] = getattr(self, node.op_type)(attributes, *(held[n] for n in node.input))
        return [_real(held[o.name]) for o in graph.output]

    def QuantizeLinear(self, _: Any, x: Any, scale: Array, zero: Array) -> Array:
        if isinstance(x, tuple) and x[0] == "codes":
            return x[1]  # behind a move: the same qparams on both sides
        if isinstance(x, tuple):
            _, acc, s, count = x
            if count and self.bug == "scale":
                s, scale = scale, s
            m = s / (scale * F32(count)) if count else s / scale
            value = acc.astype(F32) * m.astype(F32)
        else:
            value = x / scale
        z = zero.astype(F32)
        if self.bug == "zero point":
            return np.clip(np.rint(value + z), 0, 255)
        rounded = np.copysign(np.floor(np.abs(value) + F32(0.5)), value) if self.bug == "ties" else np.rint(value)
        return np.clip(rounded + z, 0, 255)

    def DequantizeLinear(self, attributes: Any, codes: Array, scale: Array, zero: Array) -> Any:
        return "codes", codes.astype(np.float64), scale.astype(F32), zero.astype(np.float64)

    def Conv(self, a: Any, x: Any, w: Any, b: Any = None) -> Any:
        (_, q, s, z), (_, k, t, _z) = x, w
        n = len(a["kernel_shape"])
        pads, strides, dilations, groups = a["pads"], a["strides"], a["dilations"], a["group"]
        q = np.pad(q - z, [(0, 0), (0, 0), *zip(pads[:n], pads[n:], strict=True)])
        spans = [d * (m - 1) + 1 for d, m in zip(dilations, a["kernel_shape"], strict=True)]
        windows = np.lib.stride_tricks.sliding_window_view(q, spans, (2, 3))[
            :, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]
        ]
        parts = zip(np.split(windows, groups, 1), np.split(k, groups, 0), strict=True)
        if self.hold is not None:
            terms = [np.einsum("nchwij,ocij->nohwcij", p, v) for p, v in parts]
            products = np.concatenate(terms, 1).reshape(*windows.shape[:1], len(k), *windows.shape[2:4], -1)
            acc = self.hold(products, 0 if b is None else b[1].reshape(1, -1, 1, 1))
            return "sum", acc, (s * t).astype(F32).reshape(1, -1, 1, 1), 0
        acc = np.concatenate([np.einsum("nchwij,ocij->nohw", p, v) for p, v in parts], 1)
        acc = acc if b is None else acc + b[1].reshape(1, -1, 1, 1)
        return "sum", acc, (s * t).astype(F32).reshape(1, -1, 1, 1), 0

    def Gemm(self, _: Any, x: Any, w: Any, b: Any = None) -> Any:
        if self.hold is not None:
            acc = self.hold((x[1] - x[3])[:, None] * w[1][None], 0 if b is None else b[1])
            return "sum", acc, (x[2] * w[2]).astype(F32), 0
        acc = (x[1] - x[3]) @ w[1].T
        return "sum", acc if b is None else acc + b[1], (x[2] * w[2]).astype(F32), 0

    def GlobalAveragePool(self, _: Any, x: Any) -> Any:
        return "sum", (x[1] - x[3]).sum((2, 3), keepdims=True), x[2], x[1].shape[2] * x[1].shape[3]

    def Relu(self, _: Any, x: Any) -> Any:
        return x

    def Clip(self, _: Any, x: Any, *bounds: Array) -> Any:
        return x

    def Flatten(self, _: Any, x: Any) -> Any:
        return "codes", x[1].reshape(len(x[1]), -1), *x[2:]

    def Squeeze(self, _: Any, x: Any, axes: Array) -> Any:
        return x[0], x[1].squeeze(tuple(axes)), *x[2:]

    def MaxPool(self, a: Any, x: Any) -> Any:
        pads = a["pads"]
        q = np.pad(x[1], [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])], constant_values=-1)
        view = np.lib.stride_tricks.sliding_window_view(q, a["kernel_shape"], (2, 3))[
            :, :, :: a["strides"][0], :: a["strides"][1]
        ]
        return "codes", view.max((4, 5)), *x[2:]


def _real(value: Any) -> Array:
    return ((value[1] - value[3]).astype(F32) * value[2]).astype(F32)
