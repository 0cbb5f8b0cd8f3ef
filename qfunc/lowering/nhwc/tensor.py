"""The types of the channels-last dialect: tensors, and the builder that three formats implement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import onnx
from attrs import frozen

from qfunc.lowering.constant_folding import Curves
from qfunc.lowering.qdq.qparams import Array, QParams

INTEGERS: dict[int, str] = {onnx.TensorProto.INT64: "INT64", onnx.TensorProto.INT32: "INT32"}
"""TFLite's names of the types of integer inputs."""


@frozen(eq=False)
class NhwcTensor:
    """A tensor in the file.

    Attributes:
        shape: The shape of one example in the file.
        qparams: None for real values.
        last: True if the channels, axis 1 of the model's tensor, are the last axis.
        order: For a flattened image, the column of the file for each column of the model's matrix.
        value: The array of a constant.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    qparams: QParams | None = None
    last: bool = False
    order: Array | None = None
    value: Array | None = None


class Builder(Protocol):
    """An interface that collects TFLite's operators and writes a file.

    Attributes:
        lowering: The name of the lowering, for messages.
        any_padding: Operators take any padding of an image, so that no separate operator pads it.
        batched: The batch size is variable. If False, the file computes one example.
        hard_swish_ratio: What s_x / s_y of HARD_SWISH on codes must be below, or None.
        blocks: FULLY_CONNECTED takes real inputs and weights with scales of blocks, and quantizes the inputs at run time.
        curves: How the runtime computes ops of constants, which are folded.
        code_type, bias_type: The NumPy types of the codes of activations and biases.
    """

    lowering: str
    any_padding: bool
    batched: bool
    blocks: bool
    hard_swish_ratio: float | None
    curves: Curves
    code_type: Any
    bias_type: Any

    def tensor(self, name: str, shape: Sequence[int], qparams: QParams | None = None, *, value: Array | None = None,
               varies: int | None = None, dtype: Any = None, **place: Any) -> NhwcTensor:  # fmt: skip
        """Return a new tensor; `value` makes it a constant, `varies` is the batch axis."""
        ...

    def integers(self, values: Any, name: str) -> NhwcTensor:
        """Return a constant of int32: shapes, axes, pads."""
        ...

    def bound_code(self, value: float, qparams: QParams) -> int:
        """Return the code of a bound, rounded as the format's kernels round the bounds of a clamp."""
        ...

    def operator(
        self, op: str, inputs: Sequence[NhwcTensor], outputs: Sequence[NhwcTensor], options: str = "", **fields: Any
    ) -> None:
        """Write one operator of TFLite."""
        ...

    def serialize(self, inputs: Sequence[NhwcTensor], outputs: Sequence[NhwcTensor]) -> bytes:
        """Return the file."""
        ...
