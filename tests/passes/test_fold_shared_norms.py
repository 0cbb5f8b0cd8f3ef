"""BatchNorms with several callers: folded into some, convolutions in others, or both, they compute what the model computes."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.passes.fold_batch_norm import fold_batch_norms

CHANNELS = 4
MODES = (qfunc.FoldBatchNorm(), qfunc.TrainBatchNorm())


def drawn_norm(draw: random.Random) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(CHANNELS, affine=draw.random() < 0.7)
    nn.init.normal_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    if norm.affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return norm


class Drawn(nn.Module):
    """Two norms and two convolutions, each called any number of times, in a drawn order; one may read a norm's gamma."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.norms = nn.ModuleList(drawn_norm(draw) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(CHANNELS, CHANNELS, k, padding=draw.randrange(2) * (k // 2)) for k in (1, 3))
        words = ("norm", "norm", "norm", "conv", "relu", "sum")
        self.steps = [(draw.choice(words), draw.randrange(2), draw.randrange(4)) for _ in range(draw.randrange(3, 10))]
        self.reads_gamma = bool(self.norms[0].affine) and draw.random() < 0.3

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for word, index, back in self.steps:
            y = values[-1]
            if word == "sum":
                y = y[..., 2:-2, 2:-2].mean((2, 3), keepdim=True) + self.norms[index](values[max(0, len(values) - back) - 1])
            else:
                y = torch.relu(y) if word == "relu" else (self.norms if word == "norm" else self.convs)[index](y)
            values.append(y)
        return y * self.norms[0].weight.reshape(-1, 1, 1) if self.reads_gamma else y


@pytest.mark.parametrize("seed", range(40))
def test_folding_changes_no_value(seed: int) -> None:
    torch.manual_seed(seed)
    model, x = Drawn(seed).eval().double(), torch.randn(2, CHANNELS, 24, 24, dtype=torch.float64)
    folded = fold_batch_norms(qfunc.capture()(model))
    assert not [n for n in folded.graph.nodes if n.op == "call_module"]
    with torch.no_grad():
        expected, found = model(x), folded(x)
    # Float64 has 53 bits, and no value is 2^13 times as large as the result.
    assert (found - expected).abs().max() <= 2.0**-40 * expected.abs().max()


class Block(nn.Module):
    """A convolution and a norm, called twice each in one of the usual orders."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order, self.stem, self.conv = order, nn.Conv2d(3, CHANNELS, 3), nn.Conv2d(CHANNELS, CHANNELS, 1)
        self.norm = drawn_norm(random.Random(0))

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        match self.order:
            case "before the convolution":
                for _ in range(2):
                    y = y + self.conv(self.norm(y).relu())
            case "after the activation":
                for _ in range(2):
                    y = self.norm(self.conv(y).relu())
            case "in two branches":
                y = self.norm(y) + self.norm(y.relu())
            case "after a convolution, and after an activation":
                y = self.norm(self.conv(y)) + self.norm(y.relu())
            case "after a convolution":
                y = self.norm(self.conv(y)) + self.norm(self.conv(y.relu()))
        return y


ORDERS = {
    "before the convolution": 1, "after the activation": 1, "in two branches": 1, "after a convolution": 0,
    "after a convolution, and after an activation": 1,
}  # fmt: skip
"""The number of depthwise convolutions' weights that the norm leaves: its calls share one."""


def quantized(order: str, mode: Any) -> tuple[nn.Module, Tensor, Any]:
    torch.manual_seed(0)
    model, x = Block(order).eval(), torch.randn(2, 3, 8, 8)
    return model, x, qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime, batch_norm=mode)(model))


@pytest.mark.parametrize("mode", MODES, ids=repr)
@pytest.mark.parametrize("order", ORDERS)
def test_a_norm_with_two_callers_calibrates_trains_and_shares_its_weight(order: str, mode: Any) -> None:
    model, x, calibrated = quantized(order, mode)
    nets = [calibrated] if mode == MODES[0] else [calibrated, qfunc.fold_batch_norm()(calibrated)]
    for net in nets:
        assert nn.functional.cosine_similarity(net.eval()(x).flatten(), model(x).flatten(), 0) > 0.99  # 8 bits
    left = [n for n, p in nets[-1].named_parameters() if tuple(p.shape) == (CHANNELS, 1, 1, 1)]
    assert left == ["norm.weight"] * ORDERS[order]
    calibrated.train()(x).square().mean().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for n, p in calibrated.named_parameters() if n.endswith("weight"))


@pytest.mark.parametrize("order", ORDERS)
def test_a_norm_trains_in_all_its_calls_or_in_none(order: str) -> None:
    _, _, calibrated = quantized(order, MODES[1])
    assert isinstance(calibrated.get_submodule("norm"), nn.BatchNorm2d) == (order == "after a convolution")
