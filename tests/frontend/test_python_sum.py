"""Python's sum begins with 0 + x: no op of its own, unless x is a tensor of booleans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qfunc.frontend.capture import capture
from qfunc.ops.node import kind_of


class Net(nn.Module):
    """A convolution, a norm, and a call of both."""

    def __init__(self, call: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.norm, self.call = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


DROPPED = {
    "branches": (lambda m, x: sum([m.conv(x), m.conv(x).relu()]), 1),
    "norms": (lambda m, x: sum([m.norm(m.conv(x)), m.conv(x)]), 1),
    "behind a move": (lambda m, x: sum([m.conv(x).flatten(1), m.conv(x).flatten(1)]), 1),
    "x + 0": (lambda m, x: m.conv(x) + 0, 0),
}
KEPT = {
    "masks": (lambda m, x: sum([m.conv(x) > 0, m.conv(x) > 1]), 2),
    "masks moved": (lambda m, x: sum([(m.conv(x) > 0).flatten(1), (m.conv(x) > 1).flatten(1)]), 2),
    "1 + x": (lambda m, x: 1 + m.conv(x), 1),
}
CASES = DROPPED | KEPT


@pytest.mark.parametrize("road", ["fx", "export"])
@pytest.mark.parametrize("name", CASES)
def test_the_sum_is_what_torch_gives_by_so_many_additions(name: str, road: str) -> None:
    call, additions = CASES[name]
    torch.manual_seed(0)
    model, x = Net(call).eval(), torch.randn(2, 3, 5, 6)
    captured = capture((x,) if road == "export" else None)(model)
    found, wanted = captured(x), model(x)
    assert found.dtype == wanted.dtype
    assert torch.equal(found, wanted)
    assert [kind_of(n) for n in captured.graph.nodes].count("add") == additions


class Mask(nn.Module):
    """A leaf of the user's."""

    def forward(self, x: Tensor) -> Tensor:
        return x > 0


def test_what_a_leaf_returns_may_be_booleans() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = Mask(), Mask()

        def forward(self, x: Tensor) -> Tensor:
            return sum([self.one(x), self.other(x)])  # type: ignore[return-value]

    x = torch.ones(2, 3)
    assert torch.equal(capture(leaves=Mask)(Two())(x), torch.full((2, 3), 2))


def test_what_is_written_into_the_sum_is_not_written_into_its_first_term() -> None:
    def call(m: Any, x: Tensor) -> Tensor:
        first = m.conv(x)
        total = 0 + first
        total += 1
        return first * total

    model, x = Net(call).eval(), torch.randn(2, 3, 5, 6)
    assert torch.equal(capture()(model)(x), model(x))
