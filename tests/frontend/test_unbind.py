"""x.unbind(dim)[i] is one op that reads one tensor: an index."""

import pytest
import torch
from torch import nn

import qfunc
from qfunc.ops.node import kind_of


class Parts(nn.Module):
    """Three parts of a tensor along an axis; the second is left out."""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        """The difference of the outer parts."""
        a, _, c = x.unbind(dim=self.dim)
        return a - c


@pytest.mark.parametrize("dim", [1, -2, -1, -3])
@pytest.mark.parametrize("example", [None, (torch.randn(3, 3, 3),)])
def test_parts_are_slices(example, dim):
    captured, x = qfunc.capture(example)(Parts(dim)), torch.randn(3, 3, 3)
    assert torch.equal(captured(x), x.select(dim, 0) - x.select(dim, 2))
    assert [kind_of(n) for n in captured.graph.nodes] == ["input", "slice", "slice", "sub", "output"]
