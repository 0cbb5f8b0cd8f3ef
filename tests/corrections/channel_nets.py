"""Float networks whose channels can be scaled, with unequal ranges; and how far float rounding may move them."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Convs(nn.Module):
    """Dense, depthwise, grouped and transposed convolutions, with and without BatchNorm, and a flattened image."""

    size = (3, 9, 11)

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.depthwise, self.slopes = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.PReLU(8)
        self.grouped, self.transposed = nn.Conv2d(8, 12, 1, groups=2), nn.ConvTranspose2d(12, 6, 2, groups=3)
        self.fc, self.drop, self.last = nn.Linear(24, 7), nn.Dropout(), nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.slopes(self.depthwise(F.pad(F.relu(self.norm(self.a(x))), (1, 0, 2, 0))))
        x = F.max_pool2d(F.leaky_relu(self.transposed(F.leaky_relu(self.grouped(x)))), 2)
        x = F.adaptive_avg_pool2d(x, 2)
        return self.last(F.relu(self.fc(self.drop(x.view(x.size(0), -1)))))


class Branches(nn.Module):
    """Two readers, which are equalized together; a residual add, which is not passed; a mean over the image."""

    size = (3, 7, 6)

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.left, self.right = nn.Conv2d(6, 4, 1), nn.Conv2d(6, 4, 3, padding=1)
        self.inner, self.outer, self.fc = nn.Conv2d(4, 9, 1), nn.Conv2d(9, 4, 1, bias=False), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = self.left(x) + self.right(x)
        x = x + self.outer(F.relu(self.inner(x)))
        return self.fc(F.relu(x).mean((2, 3)))


class Temporal(nn.Module):
    """Convolutions along one axis, and linear layers over sequences."""

    size = (3, 15)

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Conv1d(3, 5, 3), nn.Conv1d(5, 4, 2), nn.Linear(13, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.d(F.relu(self.c(self.b(F.avg_pool1d(F.relu(self.a(x)), 2, 1, 1)))).abs())


def unequal(net: type[nn.Module], seed: int = 0) -> Any:
    """A network in evaluation whose channels differ by up to four orders of magnitude, as do its statistics."""
    torch.manual_seed(seed)
    made = net().eval()
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            module.bias.data.normal_()
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor):
            sizes = 10 ** torch.empty(weight.shape[0]).uniform_(-2, 2)
            weight.data.mul_(sizes.reshape(-1, *[1] * (weight.ndim - 1)) if not isinstance(module, nn.PReLU) else 1)
    return made


def images(net: Any, count: int = 4) -> Tensor:
    """Inputs of it."""
    return torch.randn(count, *net.size)


def rounding(net: nn.Module, x: Tensor, roundings: int) -> Tensor:
    """By how much the float64 outputs may differ if each weight is rounded to float32 so often on the way.

    Every product of weights and inputs on a path changes by a factor within (1 + 2^-24)^k; the sum of their magnitudes is
    what the network of magnitudes gives.  ReLU and slopes of at most 1 add nothing.
    """
    magnitudes = copy.deepcopy(net).double()
    for module in magnitudes.modules():
        for tensor in module._parameters.values():
            if tensor is not None:
                tensor.data.abs_()
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.abs_().neg_()
    # The float64 sums themselves round a thousandth as much as the 1 % that is added.
    with torch.no_grad():
        found: Tensor = magnitudes(x.abs().double())
    return 1.01 * math.expm1(roundings * 2**-24) * found
