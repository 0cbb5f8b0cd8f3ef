"""Which tensors of a Q/DQ model are codes, and with what qparams."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from attrs import frozen
from onnx import numpy_helper

MICROSOFT = "com.microsoft"


@frozen
class Codes:
    """A tensor of codes with the names of its scale and zero point."""

    tensor: str
    scale: str
    zero_point: str

    @property
    def names(self) -> tuple[str, str, str]:
        """All three, as operators take them."""
        return self.tensor, self.scale, self.zero_point


class CodeGraph:
    """Reads a Q/DQ model; `sites` are the tensors behind its DequantizeLinear."""

    def __init__(self, model: onnx.ModelProto, sites: set[str]) -> None:
        self.graph = model.graph
        self.made = {o: n for n in model.graph.node for o in n.output}
        self.values = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
        self.outputs = {o.name for o in model.graph.output}
        self.sites = sites
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in model.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def codes(self, real: str) -> Codes | None:
        """The codes behind a dequantized tensor."""
        node = self.made.get(real)
        while node is not None and node.op_type == "Max" and len(node.input) == 1:
            node = self.made.get(node.input[0])
        if node is None or node.op_type != "DequantizeLinear" or node.output[0] not in self.sites:
            return None
        return Codes(*node.input) if len(node.input) == 3 else None

    def result(self, tensor: str, through: tuple[str, ...] = ()) -> Codes | None:
        """The codes that a tensor's only reader makes of it, perhaps behind activations that codes imply."""
        clamps: list[onnx.NodeProto] = []
        while True:
            readers = self.readers.get(tensor, [])
            if len(readers) != 1 or tensor in self.outputs:
                return None
            (node,) = readers
            if node.op_type == "QuantizeLinear":
                made = Codes(node.output[0], node.input[1], node.input[2])
                return made if all(self._implied(c, made) for c in clamps) else None
            if node.op_type in through:
                clamps.append(node)
            elif not (node.op_type == "Max" and len(node.input) == 1):
                return None
            tensor = node.output[0]

    def same(self, a: Codes, b: Codes | None) -> bool:
        """Whether both have the same qparams."""
        return b is not None and all(
            np.array_equal(self.values[x], self.values[y]) for x, y in zip(a.names[1:], b.names[1:], strict=True)
        )

    def bias(self, x: Codes, w: Codes, b: Codes) -> bool:
        """Whether a bias has the scale of the products, s_x s_w, as operators take it to have."""
        product = self.values[x.scale] * self.values[w.scale]
        return bool(np.all(self.values[b.scale] == product) and not self.values[b.zero_point].any())

    def _implied(self, clamp: onnx.NodeProto, y: Codes) -> bool:
        # As codes, the bounds lie at the ends of the type or beyond: there the operator saturates by itself.
        bounds = [0.0, None] if clamp.op_type == "Relu" else [self._bound(clamp, 1), self._bound(clamp, 2)]
        scale, zero = self.values[y.scale], self.values[y.zero_point]
        ends = np.iinfo(zero.dtype)
        low, high = (None if v is None else np.rint(np.float32(v) / scale) + zero.astype(np.int64) for v in bounds)
        return bool((low is None or np.all(low <= ends.min)) and (high is None or np.all(high >= ends.max)))

    def _bound(self, clip: onnx.NodeProto, index: int) -> Any:
        name = clip.input[index] if index < len(clip.input) else ""
        return self.values[name] if name else None


__all__ = ["MICROSOFT", "CodeGraph", "Codes"]
