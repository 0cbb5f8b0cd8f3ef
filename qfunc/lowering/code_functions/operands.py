"""What a function on codes receives: one op of a file, with its tensors of codes and the qparams of its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import frozen

Array = np.ndarray[Any, Any]


@frozen(eq=False)
class Coded:
    """A tensor of codes: real = (codes - zero_point) * scale.

    Attributes:
        codes: In the type that the file has.
        scale: A float, or float64 [C] for one scale a channel.
        zero_point: An int, or int64 [C] if the channels have several.
    """

    codes: Array
    scale: Any
    zero_point: Any

    @property
    def real(self) -> Array:
        """The real values in float32, as the host computes them; channels of weights are along axis 0."""
        shape = (-1, *[1] * (self.codes.ndim - 1)) if np.ndim(self.scale) else ()
        zero, scale = np.reshape(self.zero_point, shape if np.ndim(self.zero_point) else ()), np.reshape(self.scale, shape)
        return np.asarray((self.codes.astype(np.int64) - zero).astype(np.float32) * scale.astype(np.float32))


@frozen(eq=False)
class CodeOp:
    """One op that the chip computes on codes.

    Attributes:
        kind: The ONNX operator, such as "Conv", "Gemm" (linear layers, weights [O, C]) or "Add".
        name: The name of its node.
        inputs: Its operands; None for one that is left out, and arrays for those that have no codes.
        attributes: Those of ONNX by name.
        scale: Of the result; None if the result is real.
        zero_point: Of the result.
        low, high: The codes of the result, within the bounds of the activations that are fused.
    """

    kind: str
    name: str
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any]
    scale: float | None
    zero_point: int = 0
    low: int = 0
    high: int = 0
