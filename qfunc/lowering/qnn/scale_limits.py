"""Scales of products that the HTP does not take: `deploy` refuses them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qfunc.errors import DeployError

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
LIMIT = 2.0**8


def require_scales(graph: Any) -> None:
    """Refuses products with s_x s_w / s_y of 2^8 or more in a channel: there the HTP gives the zero point, of any sum.

    Raises:
        DeployError: names the tensor.
    """
    from onnx import numpy_helper

    held = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    made = {n.output[0]: n for n in graph.node if n.op_type == "DequantizeLinear"}
    behind = {n.input[0]: n for n in graph.node if n.op_type == "QuantizeLinear"}
    for node in graph.node:
        if node.op_type in PRODUCTS and node.output[0] in behind and all(name in made for name in node.input[:2]):
            _require(node, [made[node.input[0]], made[node.input[1]], behind[node.output[0]]], held)


def _require(node: Any, qdq: list[Any], held: Mapping[str, Any]) -> None:
    x, weight, y = (np.max(held[n.input[1]]).astype(np.float64) for n in qdq)
    if held[qdq[2].input[2]].itemsize == 1 and (ratio := x * weight / y) >= LIMIT:
        do = "Calibrate on values near those it meets."
        found = f"s_x * s_w / s_y of {ratio:g}"
        raise DeployError(where=f"tensor {node.output[0]!r}", found=found, wanted="one below 2^8", do=do)


__all__ = ["require_scales"]
