"""A leaf that computes in training only."""

from __future__ import annotations

from typing import Any

from torch import nn


class TrainingOnly(nn.Module):
    """A module of the user's own that in evaluation returns its input, as dropout does.

    >>> TrainingOnly(nn.Dropout(1.0)).eval()(3)
    3
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.training = inner.training

    def forward(self, input: Any) -> Any:
        """What the inner module makes of the input in training; in evaluation the input."""
        return self.inner(input) if self.training else input


__all__ = ["TrainingOnly"]
