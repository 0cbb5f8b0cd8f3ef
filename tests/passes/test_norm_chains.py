"""Chains of constants after a convolution that are no whole norm stay, and the report says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qfunc.frontend.capture import capture
from qfunc.graph.record import record_of
from qfunc.passes.fold_batch_norm import fold_batch_norms


class Chain(nn.Module):
    """A convolution, and a function of its output and of constants per channel."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 4, 1), function
        self.register_buffer("w", torch.rand(4, 1, 1) + 0.5)
        self.register_buffer("b", torch.randn(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """[n, 4, h, w] of [n, 3, h, w]."""
        return self.function(self.conv(x), self.w, self.b)


ONLY_SCALED = "the channels are scaled by constants, not shifted: "
ONLY_SHIFTED = "the channels are shifted by constants, not scaled: "

NEAR_MISSES: list[tuple[Callable[..., Any], str, str]] = [
    (lambda y, w, b: (y * w).relu(), "mul", ONLY_SCALED + "'relu' (relu) follows"),
    (lambda y, w, b: 2.0 / (y - b), "sub", ONLY_SHIFTED + "'truediv' divides by 'sub'"),
    (
        lambda y, w, b: (lambda z: z + z)(y * w),
        "mul",
        ONLY_SCALED + "'add' reads no other operand, where one constant per channel is wanted",
    ),
    (lambda y, w, b: (lambda z: z * z.sigmoid())(y * w), "mul", ONLY_SCALED + "'mul' is read 2 times"),
]


@pytest.mark.parametrize(("function", "step", "reason"), NEAR_MISSES)
def test_the_reason(function: Callable[..., Any], step: str, reason: str) -> None:
    folded = fold_batch_norms(capture()(Chain(function).eval()))
    record = record_of(folded)
    assert record is not None
    assert record.unfolded == (("conv", step, reason),)


FOLDED: list[Callable[..., Any]] = [
    lambda y, w, b: y * w + b,
    lambda y, w, b: b + w * y,
    lambda y, w, b: (y - b) / w,
    lambda y, w, b: b - y / w,
    lambda y, w, b: (y - b) / w * 2.0 + 1,
    lambda y, w, b: ((b - y) * 3.0 + 0.5) * w,
]


@pytest.mark.parametrize("function", FOLDED)
def test_a_whole_norm_folds(function: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    net, x = Chain(function).eval().double(), torch.randn(2, 3, 4, 5, dtype=torch.float64)
    folded = fold_batch_norms(capture()(net))
    assert [n.op for n in folded.graph.nodes if n.op.startswith("call")] == ["call_function"]
    # A few roundings of float64 in another order.
    assert torch.allclose(folded(x), net(x), rtol=1e-12, atol=1e-12)
