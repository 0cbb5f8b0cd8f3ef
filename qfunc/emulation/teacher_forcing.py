"""Run an emulation on the codes that a runtime shows, and join the examples of a runtime as the model does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from qfunc.placement.encoding import Encoding

__all__ = ["TeacherForced", "in_model_order", "same"]


class TeacherForced(fx.Interpreter):
    """Run the emulation with each tensor of codes replaced by the runtime's.

    `pairs` has both, `values` the value of each node by name, and `codes_of` those of the runtime.
    """

    def __init__(
        self, emulation: fx.GraphModule, encodings: dict[str, tuple[str, Encoding]], codes: dict[str, Any], examples: int
    ) -> None:
        super().__init__(emulation)
        self.encodings, self.codes, self.examples = encodings, codes, examples
        self.pairs: list[tuple[str, Tensor, Tensor]] = []
        self.values: dict[str, Any] = {}
        self.codes_of: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Return the node's value, or the runtime's codes of it."""
        value = super().run_node(n)
        if n.name not in self.encodings:
            self.values[n.name] = value
            return value
        path, _ = self.encodings[n.name]
        actual = in_model_order(self.codes[f"{path}.codes"], value, self.examples).float()
        self.pairs.append((path, value, actual))
        self.values[n.name] = self.codes_of[n.name] = actual
        return actual


def in_model_order(value: Any, like: Tensor, examples: int) -> Tensor:
    """Return a tensor in the shape of the model.

    A runtime that takes one example a call joins them along the first axis, also where the batch of the model is another
    axis, or where no example changes the tensor.
    """
    tensor = torch.as_tensor(value)
    if tensor.shape == like.shape or tensor.ndim == 0 or tensor.shape[0] % examples:
        return tensor.reshape(like.shape) if tensor.numel() == like.numel() else tensor
    each = torch.split(tensor, len(tensor) // examples)
    shape, wanted = list(each[0].shape), list(like.shape)
    axes = [i for i in range(len(shape)) if wanted == [*shape[:i], shape[i] * examples, *shape[i + 1 :]]]
    if axes:
        return torch.cat(each, axes[0])
    if each[0].numel() == like.numel() and all(same(each[0], e) for e in each[1:]):
        return each[0].reshape(like.shape)
    return tensor.reshape(like.shape) if tensor.numel() == like.numel() else tensor


def same(a: Tensor, b: Tensor) -> bool:
    """Return True if no element differs; NaN equals NaN."""
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
