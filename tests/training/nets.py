"""Small networks to train, and their batches."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc.specs import Target


class Small(nn.Module):
    """Two convs with BatchNorms, a concat, whose inputs most chips tie, a linear layer."""

    def __init__(self, norm: type[nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.left, self.norm1 = nn.Conv2d(3, 4, 3, padding=1), norm(4)
        self.right, self.norm2 = nn.Conv2d(3, 5, 1, bias=False), norm(5)
        self.head = nn.Linear(9, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat((self.norm1(self.left(x)).relu(), self.norm2(self.right(x)).relu()), 1)
        return self.head(x.mean((2, 3)))


def batch(seed: int, n: int = 8) -> Tensor:
    return torch.randn(n, 3, 7, 6, generator=torch.Generator().manual_seed(seed))


CLASSES = torch.arange(8) % 6


def net(dtype: torch.dtype = torch.float32, norm: type[nn.Module] = nn.BatchNorm2d) -> nn.Module:
    """Small, with running statistics that are not those it starts with."""
    torch.manual_seed(1)
    made: Any = Small(norm)
    for each in (made.norm1, made.norm2):
        each.running_mean.uniform_(-0.2, 0.2)
        each.running_var.uniform_(0.5, 2)
        nn.init.uniform_(each.weight, 0.5, 1.5)
    return made.to(dtype)


def student(target: Target, model: nn.Module | None = None, **how: Any) -> Any:
    """A quantized model in training; BatchNorms train unless `how` says otherwise."""
    model = net() if model is None else model
    dtype = next(model.parameters()).dtype
    quantized = qfunc.quantize(target, **{"batch_norm": qfunc.TrainBatchNorm(), **how})(model)
    # Of a smaller batch than those of training, which clip.
    return qfunc.calibrate([batch(0).to(dtype) * 0.7], progress=False)(quantized).train()


def loss_of(model: nn.Module, x: Tensor, classes: Tensor = CLASSES) -> Tensor:
    return F.cross_entropy(model(x), classes)
