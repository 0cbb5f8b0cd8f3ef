"""x.unbind(dim)[i] is one op that reads one tensor: an index."""

import pytest
import torch
from torch import nn

import qfunc
from qfunc.ops.node import kind_of


class Parts(nn.Module):
    """Three parts of a tensor; the second is left out."""

    def forward(self, x):
        """The difference of the outer parts."""
        a, _, c = x.unbind(1)
        return a - c


@pytest.mark.parametrize("example", [None, (torch.randn(2, 3, 5),)])
def test_parts_are_slices(example):
    captured, x = qfunc.capture(example)(Parts()), torch.randn(2, 3, 5)
    assert torch.equal(captured(x), x[:, 0] - x[:, 2])
    assert [kind_of(n) for n in captured.graph.nodes] == ["input", "slice", "slice", "sub", "output"]
