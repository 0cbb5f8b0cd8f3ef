"""The types of the channels-last dialect: tensors, and the builder that three formats implement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from attrs import frozen

from qfunc.lowering.qdq_reader import Array, QParams

__all__ = ["Builder", "NhwcTensor"]


@frozen(eq=False)
class NhwcTensor:
    """A tensor of the file.

    `shape` is that of one example, as it lies there; `qparams` is None for real values.  `last`: the channels, axis
    1 of the model's tensor, lie last.  `order`: where each column of the model's matrix lies in a flattened image.
    `value`: a constant.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    qparams: QParams | None = None
    last: bool = False
    order: Array | None = None
    value: Array | None = None


class Builder(Protocol):
    """What a writer of TFLite's operators writes to.

    `any_padding`: an image may have any padding around it, so that none is written by itself.
    """

    lowering: str
    any_padding: bool

    def tensor(self, name: str, shape: Sequence[int], qparams: QParams | None = None, *, value: Array | None = None,
               varies: int | None = None, dtype: Any = None, **place: Any) -> NhwcTensor:  # fmt: skip
        """A new tensor; `value` makes it a constant, `varies` is the axis whose length is the batch's."""
        ...

    def integers(self, values: Any, name: str) -> NhwcTensor:
        """A constant of int32: shapes, axes, pads."""
        ...

    def operator(
        self, op: str, inputs: Sequence[NhwcTensor], outputs: Sequence[NhwcTensor], options: str = "", **fields: Any
    ) -> None:
        """One operator of TFLite."""
        ...

    def packed(self, inputs: Sequence[NhwcTensor], outputs: Sequence[NhwcTensor]) -> bytes:
        """The file."""
        ...
