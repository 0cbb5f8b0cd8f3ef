"""Norms and acts that are nobody's but a user's, as real repositories write them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn


class FrozenBatchNorm2d(nn.Module):
    """As torchvision and DETR write it: four buffers, arithmetic in forward."""

    def __init__(self, features: int, eps: float = 1e-5, rank: int = 4) -> None:
        super().__init__()
        self.eps, self.shape = eps, (1, -1, *[1] * (rank - 2))
        g = torch.Generator().manual_seed(features)
        self.register_buffer("weight", torch.randn(features, generator=g))
        self.register_buffer("bias", torch.randn(features, generator=g))
        self.register_buffer("running_mean", torch.randn(features, generator=g))
        self.register_buffer("running_var", torch.rand(features, generator=g) + 0.1)

    def forward(self, x: Tensor) -> Tensor:
        w, b, rv, rm = (t.reshape(self.shape) for t in (self.weight, self.bias, self.running_var, self.running_mean))
        scale = w * (rv + self.eps).rsqrt()
        return x * scale + (b - rm * scale)


class CalledNorm(FrozenBatchNorm2d):
    """As detectron2 and MQBench write it: a call of F.batch_norm on buffers."""

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps)


class TorchCalledNorm(FrozenBatchNorm2d):
    """The same through torch.batch_norm, whose arguments stand in another order."""

    def forward(self, x: Tensor) -> Tensor:
        args = (self.weight, self.bias, self.running_mean, self.running_var, False, 0.1, self.eps, False)
        return torch.batch_norm(x, *args)


class WrittenOut(FrozenBatchNorm2d):
    """(x - mean) / deviation * gamma + beta, with a number among the factors and the operands swapped."""

    def forward(self, x: Tensor) -> Tensor:
        w, b, rv, rm = (t.view(self.shape) for t in (self.weight, self.bias, self.running_var, self.running_mean))
        return b - (2.0 * ((rm - x) / (rv + self.eps).sqrt()) * (w / 2))


class PlusOne(nn.Module):
    """A norm that writes its gamma as 1 + weight, opaque to any tracer that keeps it a leaf."""

    def __init__(self, features: int) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(features + 7)
        self.gamma = nn.Parameter(torch.randn(features, generator=g))
        self.beta = nn.Parameter(torch.randn(features, generator=g))

    def forward(self, x: Tensor) -> Tensor:
        shape = (1, -1, *[1] * (x.ndim - 2))
        return x * (1 + self.gamma).reshape(shape) + self.beta.reshape(shape)


def fold_plus_one(weight: Tensor, bias: Tensor, norm: PlusOne) -> tuple[Tensor, Tensor]:
    """The user's own fusion function for a module."""
    gamma = 1 + norm.gamma
    weight *= gamma.reshape(-1, *[1] * (weight.ndim - 1))  # in place: what it gets is a copy
    return weight, bias * gamma + norm.beta


def scale_shift(x: Tensor, gamma: Tensor, beta: Tensor, gain: float = 1.0) -> Tensor:
    """A function of the user's."""
    return x * (gain * gamma)[:, None, None] + beta[:, None, None]


fx.wrap("scale_shift")


def fold_scale_shift(weight: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor, gain: float = 1.0) -> tuple[Tensor, Tensor]:
    """The user's own fusion function for a function."""
    gamma = gain * gamma
    return weight * gamma.reshape(-1, *[1] * (weight.ndim - 1)), bias * gamma + beta


class ScaledConv(nn.Module):
    """A conv and the function behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, (2, 3), bias=False)
        self.gamma, self.beta = nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(scale_shift(self.conv(x), self.gamma, self.beta, gain=3.0))
