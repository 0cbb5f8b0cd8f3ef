"""Rewrite c * reciprocal(x) as c / x: PyTorch computes c / x so, and torch.export records both steps."""

from __future__ import annotations

import torch

from qfunc.graph.matcher import Rewrite, calls
from qfunc.graph.patterns import number, op, tensor

QUOTIENTS = (
    (
        Rewrite(
            "div",
            op("mul", number("c"), op("reciprocal", tensor("x")), commutative=True),
            calls(torch.div, "c", "x"),
        ),
    ),
)
"""One stage, before the activations: their patterns have quotients."""

__all__ = ["QUOTIENTS"]
