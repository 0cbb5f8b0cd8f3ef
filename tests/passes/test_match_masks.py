"""The addition of a mask becomes the op "mask", whichever operand the mask is, and other additions stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from qfunc.frontend.capture import capture
from qfunc.ops.node import kind_of
from qfunc.passes.match_masks import match_masks

MASKED: list[Callable[[Any, Any], Any]] = [
    lambda x, m: x + (1.0 - m) * -10000.0,
    lambda x, m: (1.0 - m) * -10000.0 + x,
    lambda x, m: x + ((1.0 - m) * -10000.0).unsqueeze(0),
    lambda x, m: x + ((1.0 - m) * -10000.0 + 1.0),  # a sum with a number masks too
    lambda x, m: x + torch.maximum(m * -1e9, m - 1e4),
]


@pytest.mark.parametrize("function", MASKED)
def test_the_mask_is_the_second_operand(function: Callable[[Any, Any], Any]) -> None:
    network = match_masks(capture()(fx.symbolic_trace(function)))
    (mask,) = [n for n in network.graph.nodes if kind_of(n) == "mask"]
    assert mask.args[0].name == "x"
    x, m = torch.randn(3, 4), torch.tensor([0.0, 1.0, 1.0, 0.0])
    assert torch.equal(network(x, m), function(x, m))


@pytest.mark.parametrize("function", [lambda x, m: x + m, lambda x, m: x + m * -2.0, lambda x, m: (x + m) * -10000.0])
def test_other_additions_stay(function: Callable[[Any, Any], Any]) -> None:
    network = match_masks(capture()(fx.symbolic_trace(function)))
    assert "mask" not in map(kind_of, network.graph.nodes)
