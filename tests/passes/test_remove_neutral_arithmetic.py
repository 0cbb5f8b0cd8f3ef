"""Sums, products and quotients with a number that changes nothing are removed where their operand is real."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

import qfunc
from qfunc import targets
from qfunc.frontend.capture import capture
from qfunc.ops.node import kind_of
from qfunc.passes.remove_neutral_arithmetic import remove_neutral_arithmetic
from tests.conformance.modules import Apply

REMOVED = {
    "x + 0": lambda x: torch.exp(x) + 0.0,
    "0 + x": lambda x: 0.0 + torch.exp(x),
    "x - 0": lambda x: torch.exp(x) - 0.0,
    "x * 1": lambda x: torch.exp(x) * 1.0,
    "1 * x": lambda x: 1 * torch.exp(x),
    "x / 1": lambda x: torch.exp(x) / 1,
    "after moves": lambda x: torch.exp(x).view(-1)[0] * 1.0,
    "of a sum with a real tensor": lambda x: (x + torch.exp(x)) * 1.0,
}
KEPT = {
    "0 - x": lambda x: 0 - torch.exp(x),
    "1 / x": lambda x: 1 / torch.exp(x),
    "x * 0": lambda x: torch.exp(x) * 0,
    "x + 1": lambda x: torch.exp(x) + 1,
    "an input, which may be of integers": lambda x: x * 1.0,
    "a comparison": lambda x: (x > 0) * 1.0,
    "a quotient of integers": lambda x: torch.arange(3) / 1 + x,
    "True": lambda x: torch.exp(x) * True,
}


def kinds(function) -> list[str]:
    """The kinds of ops of a function before and after the pass."""
    network = capture()(fx.symbolic_trace(function))
    before = [kind_of(n) for n in network.graph.nodes]
    after = [kind_of(n) for n in remove_neutral_arithmetic(network).graph.nodes]
    x = torch.randn(3)
    assert torch.equal(network(x), function(x))
    return [] if before == after else before


@pytest.mark.parametrize("name", REMOVED)
def test_it_is_removed(name):
    assert kinds(REMOVED[name])


@pytest.mark.parametrize("name", KEPT)
def test_it_is_kept(name):
    assert not kinds(KEPT[name])


def test_the_runtime_does_not_join_the_quantizers_around_it():
    """ONNX Runtime removes x * 1.0 and rounds once between two quantizers with other ranges."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), Apply(lambda x: x.view(-1, 3, 4).permute(1, 0, 2)[0] * 1.0))
    batches = [torch.randn(8, 6) for _ in range(2)]
    quantized = qfunc.quantize(targets.onnxruntime)(model)
    report = qfunc.verify(targets.onnxruntime)(qfunc.calibrate(batches, progress=False)(quantized), batches)
    assert report.agreement.startswith("bit-exact: 0 of"), report
