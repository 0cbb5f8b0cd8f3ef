"""Sizes that a layer's weight determines are numbers, whatever the inputs; other sizes are computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.ops.sizes import is_number
from qfunc.passes.fold_layer_sizes import fold_layer_sizes

X = torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(3))


class Sized(nn.Module):
    """A convolution or a linear layer, and a function of its result."""

    def __init__(self, layer: nn.Module, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.function = layer, function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.layer(x))


class Viewed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(-1, 90)


class LastStep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps, self.head = nn.LSTM(30, 4, batch_first=True), nn.Linear(4, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.steps(x.flatten(2))[0][:, -1])


class FirstToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 2), nn.Linear(8, 9)
        self.token, self.norm = nn.Parameter(torch.ones(1, 1, 8)), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.conv(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(2, -1, -1), patches], 1)
        a, b = self.norm(tokens).chunk(2, -1)
        return self.head((torch.cat([a, b], -1) + tokens.softmax(-1).unflatten(-1, (2, 4)).flatten(-2))[:, 0])


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 2), nn.Linear(8, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.max_pool2d(F.pad(self.conv(x), (1, 0)), 2).mean((2, 3)))


CONV, LINEAR = nn.Conv2d(3, 4, 3, groups=1), nn.Linear(5, 9)
FLAT = nn.Sequential(nn.Flatten(), nn.Linear(90, 9), nn.ReLU())
VIEWED = nn.Sequential(Viewed(), nn.Linear(90, 9))
NUMBERS: list[tuple[nn.Module, Callable[[Tensor], Any]]] = [
    (LINEAR, lambda y: y / y.size(-1)),
    (LINEAR, lambda y: F.relu(y) / math.sqrt(F.relu(y).shape[-1])),
    (FLAT, lambda y: y / (y.size(1) + 1) ** 0.5),
    (VIEWED, lambda y: y / math.sqrt(y.size(1))),
    (Classifier(), lambda y: y / math.sqrt(y.size(1))),
    (FirstToken(), lambda y: y / math.sqrt(y.size(1))),
    (CONV, lambda y: y * y.size(-3)),
]
STEPS: list[tuple[nn.Module, Callable[[Tensor], Any]]] = [(LastStep(), lambda y: y / math.sqrt(y.size(1)))]
COMPUTED: list[tuple[nn.Module, Callable[[Tensor], Any]]] = [
    (LINEAR, lambda y: y / y.size(1)),
    (LINEAR, lambda y: y.transpose(1, 2) / y.transpose(1, 2).size(-1)),
    (CONV, lambda y: y * y.size(1)),  # a convolution also takes one image, without a batch
    (CONV, lambda y: y / y.shape[-1]),
]


def sizes(layer: nn.Module, function: Callable[[Tensor], Any]) -> int:
    """Return the number of numbers that the network computes."""
    network, model = fold_layer_sizes(qfunc.capture()(Sized(layer, function).eval())), Sized(layer, function).eval()
    assert torch.equal(network(X), model(X))
    return sum(n.op == "call_function" and is_number(n) for n in network.graph.nodes)


@pytest.mark.parametrize(("layer", "function"), NUMBERS + STEPS)
def test_sizes_of_the_weight_are_numbers(layer: nn.Module, function: Callable[[Tensor], Any]) -> None:
    assert sizes(layer, function) == 0


@pytest.mark.parametrize(("layer", "function"), COMPUTED)
def test_sizes_of_the_input_are_computed(layer: nn.Module, function: Callable[[Tensor], Any]) -> None:
    assert sizes(layer, function) > 0


READ: list[tuple[nn.Module, Callable[[Tensor], Any]]] = [
    (CONV, lambda y: (z := F.softmax(y * 2.0, -1) * y).transpose(z.dim() - 1, 1)),
    (CONV, lambda y: F.relu(y).reshape(y.size(0), y.numel() // y.size(0))),
]
"""What reads the number of axes or of entries of a tensor reads no values."""


@pytest.mark.parametrize(("layer", "function"), NUMBERS + READ)
def test_both_ways_of_capture_give_the_same_codes(layer: nn.Module, function: Callable[[Tensor], Any]) -> None:
    model, target = Sized(layer, function).eval(), targets.onnxruntime
    made = [qfunc.calibrate([X], progress=False)(qfunc.quantize(target, example)(model)) for example in (None, (X,))]
    assert torch.equal(*(qfunc.emulate(target)(each)(X) for each in made))
