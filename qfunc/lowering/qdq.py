"""The plainest lowering: the standard Q/DQ model itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen


@frozen
class Qdq:
    """`model.onnx`: ONNX with QuantizeLinear and DequantizeLinear, as ONNX Runtime and TensorRT load it.

    Source: ONNX operator specification, QuantizeLinear-21, DequantizeLinear-21.

    >>> Qdq()
    Qdq()
    """

    def lower(self, model: Any, sites: Any) -> Mapping[str, bytes]:
        """The model's bytes, the same for the same model."""
        return {"model.onnx": model.SerializeToString(deterministic=True)}
