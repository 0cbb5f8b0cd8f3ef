"""A norm written as shift - x scale folds with the sign of its factor."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qfunc import targets
from qfunc.frontend.capture import capture
from qfunc.passes.fold_batch_norm import fold_batch_norms


class Reversed(nn.Module):
    """b - conv(x) w, with one w and b for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 2)
        self.register_buffer("w", torch.rand(1, 4, 1, 1) + 0.5)
        self.register_buffer("b", torch.randn(1, 4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """[n, 4, h - 1, w - 1] of [n, 3, h, w]."""
        return self.b - self.conv(x) * self.w


def test_a_norm_that_subtracts_from_its_shift_turns_the_sign() -> None:
    torch.manual_seed(0)
    net, x = Reversed().eval(), torch.randn(2, 3, 5, 6)
    folded = fold_batch_norms(capture()(net), targets.tensorrt)
    assert [n.name for n in folded.graph.nodes] == ["x", "conv_weight", "conv_bias", "conv", "output"]
    assert torch.allclose(folded(x), net(x), atol=1e-5)  # the order of float32 sums
