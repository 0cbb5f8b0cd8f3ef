"""Sizes that a model reads between ops: both ways to capture place the same quantizers and give the same codes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import qfunc
from qfunc import targets
from qfunc.frontend.sizes_of_results import read_sizes_of_results
from qfunc.ops.node import kind_of


class Layers(nn.Module):
    """Some layers, and a forward that reads sizes between them."""

    def __init__(self, forward) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(144, 5)
        self.groups, self.call = nn.GroupNorm(2, 4), forward

    def forward(self, x):
        return self.call(self, x)


def norm_folds(m, x):
    y = m.conv(x)
    return m.norm(y).view(y.size(0), y.size(1), -1)


def relu_fuses(m, x):
    y = m.conv(x)
    return F.relu(y).view(y.shape[0], -1)


def pool_moves_codes(m, x):
    y = F.max_pool2d(m.conv(x), 3, 1, 1)
    return m.head(y.view(y.size(0), -1))


def input_is_pooled(m, x):
    y = F.max_pool2d(F.pad(x, (0, 0, 0, 0, 0, 1)), 3, 1)
    return m.head(y.view(y.size(0), -1))


def relu_and_pool(m, x):
    y = m.conv(x)
    return m.head(F.max_pool2d(F.relu(y), 3, 1, 1).view(y.size(0), -1))


def groups_and_curve(m, x):
    y = m.conv(x)
    return F.silu(m.groups(y)).reshape(y.size(0), -1) / y.size(1)


def relu_needs_the_size(m, x):
    y = m.conv(x)
    return F.relu(y / y.size(1)).flatten(1)


FORWARDS = (
    norm_folds, relu_fuses, pool_moves_codes, input_is_pooled, relu_and_pool, groups_and_curve, relu_needs_the_size,
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("target", [targets.onnxruntime, targets.litert], ids=lambda t: t.name)
@pytest.mark.parametrize("forward", FORWARDS)
def test_both_ways_to_capture_give_the_same_codes(forward, target):
    torch.manual_seed(0)
    model, x = Layers(forward).eval(), torch.randn(2, 3, 8, 8)
    found, sites = [], []
    for example in (None, (x,)):
        calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target, example)(model))
        found.append(qfunc.emulate(target)(calibrated)(2 * x))
        sites.append(sum(kind_of(n) == "fake_quantize" for n in calibrated.graph.nodes))
    assert torch.equal(*found)
    assert sites[0] == sites[1]


def test_numbers_of_a_size_that_come_before_the_result_move_after_it():
    class Early(nn.Module):
        def forward(self, x):
            y = torch.sigmoid(x)
            count = y.size(0) * y.size(1)
            return torch.relu(torch.tanh(y)).view(count, -1)

    graph = qfunc.capture()(Early()).graph
    graph.lint()
    sizes = [n for n in graph.nodes if kind_of(n) == "size"]
    assert [n.args[0].name for n in sizes] == ["relu", "relu"]


def test_a_result_that_needs_the_size_keeps_the_order():
    captured = qfunc.capture()(Layers(relu_needs_the_size).eval())
    names = [n.name for n in captured.graph.nodes]
    assert [n.name for n in read_sizes_of_results(captured).graph.nodes] == names
    assert [n.args[0].name for n in captured.graph.nodes if kind_of(n) == "size"] == ["conv"]
