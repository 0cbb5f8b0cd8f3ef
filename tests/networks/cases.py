"""Small networks of every kind that symbolic tracing takes: what they compute, and inputs for a batch size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor, nn


@frozen
class Case:
    """A model, inputs by batch size, and how many of its sites the onnxruntime target has at least."""

    model: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[Tensor, ...]]
    sites: int = 1


class One(nn.Module):
    """A function of one input and of modules."""

    def __init__(self, function: Callable[..., Any], *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Any:
        return self.function(x, *self.parts)


class Two(One):
    """Of two."""

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.function(x, y, *self.parts)


class Three(One):
    """Of three."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Any:
        return self.function(x, y, z, *self.parts)


def words(batch: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 5, 6),)


def images(batch: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, 8, 10),)


def pair(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 5, 6), torch.randn(batch, 7, 6)


def padded(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 5, 6), torch.tensor([[False] * 4 + [True]] * batch)


def line(inputs: int = 6, outputs: int = 6) -> nn.Linear:
    return nn.Linear(inputs, outputs)


def conv() -> nn.Conv2d:
    return nn.Conv2d(3, 4, 3, padding=1)


def heads(x: Tensor, count: int = 2) -> Tensor:
    return x.unflatten(-1, (count, 3)).transpose(1, 2)


def between(function: Callable[[Tensor], Tensor], channels: int = 4) -> Case:
    """An op between two convolutions, so that it is quantized on both sides."""
    return Case(lambda: One(lambda x, a, b: b(function(a(x))), conv(), nn.Conv2d(channels, 5, 1)), images, 5)


def unrolled(x: Tensor, cell: Any, head: Any) -> Tensor:
    h, c = cell(x[:, 0])
    for t in range(1, 3):
        h, c = cell(x[:, t], (h, c))
    return head(h)


def in_place(x: Tensor, a: Any, b: Any) -> Tensor:
    y = a(x)
    y.relu_()
    y += x
    z = b(y)
    z.add_(1.5).mul_(2)
    return z


class Pair(NamedTuple):
    """What a model of the user's may return."""

    first: Tensor
    second: Any


@dataclass
class Found:
    """As Pair."""

    first: Tensor
    second: Any = None


class Buffers(nn.Module):
    """Constants of every kind in arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scale, self.plain = conv(), nn.Parameter(torch.randn(4, 1, 1)), torch.randn(4, 1, 1)
        self.register_buffer("mean", torch.randn(3, 1, 1))

    def forward(self, x: Tensor, *, gain: float = 2.0, deep: bool = False) -> Tensor:
        y = self.conv((x - self.mean) / 0.3) * self.scale + self.plain
        return y * 3 if deep else y * gain + torch.arange(4.0).view(4, 1, 1) + x.new_full((1,), 0.5)


class Detector(nn.Module):
    """A pyramid with heads for classes and boxes, which returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 6, 3, 2, 1)
        self.l1, self.l2 = nn.Conv2d(4, 5, 1), nn.Conv2d(6, 5, 1)
        self.classes, self.boxes = nn.Conv2d(5, 7, 3, padding=1), nn.Conv2d(5, 4, 3, padding=1)

    def forward(self, x: Tensor) -> dict[str, Any]:
        a = F.relu(self.c1(x))
        b = F.relu(self.c2(a))
        small = self.l2(b)
        large = self.l1(a) + F.interpolate(small, size=a.shape[-2:])
        boxes, scores = [], []
        for level in (large, small):
            n, _, h, w = level.shape
            scores.append(self.classes(level).permute(0, 2, 3, 1).reshape(n, -1, 7).sigmoid())
            boxes.append(self.boxes(level).permute(0, 2, 3, 1).reshape(n, h * w, 4).exp())
        return {"scores": torch.cat(scores, 1), "boxes": torch.cat(boxes, 1), "features": (large, small)}


class Dropped(nn.Module):
    """Dropout in every spelling, in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = conv(), nn.BatchNorm2d(4), nn.Dropout2d(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(F.relu(self.drop(self.norm(self.conv(x)))), 0.1, self.training)


def tied() -> nn.Module:
    model = One(lambda x, e, head: head(e(x).mean(1)), nn.Embedding(7, 6), nn.Linear(6, 7, bias=False))
    model.parts[1].weight = model.parts[0].weight
    return model


def floats(x: Tensor, a: Any) -> Tensor:
    y = a(x)
    y = torch.sin(y) + torch.log1p(y.abs()) + torch.expm1(y) + y.square() + torch.atan(y) + torch.erf(y) + y.round() + y.sign()
    y = y + (x % 1.5) + x // 1 + torch.fmod(x, 1.0) + torch.addcmul(x, x, x, value=0.5) + torch.lerp(x, y, 0.3) + torch.exp2(x)
    return y + x.var(-1, keepdim=True) + x.std(1, keepdim=True) + x.amax((1, 2), keepdim=True) + x.norm(dim=-1, keepdim=True)


def activated(x: Tensor, a: Any) -> Tensor:
    y = a(x)
    y = F.selu(y) + F.celu(y, 0.7) + F.softsign(y) + F.softshrink(y) + F.hardshrink(y) + F.tanhshrink(y) + F.logsigmoid(y)
    y = y + F.threshold(y, 0.1, -0.3) + F.softmin(y, 1) + F.rrelu(y) + F.mish(y) + F.elu(y) + F.softplus(y) + F.hardswish(y)
    y = y + F.softplus(y, 2.0) + F.softplus(y, 0.5, 3.0)
    return F.glu(y, 1)


def chosen(x: Tensor, a: Any) -> Any:
    y = a(x)
    values, places = y.topk(3, -1)
    return values, places, y.sort(1, descending=True).values, y.max(1)[0], y.argmin(-1), y.cumsum(1), y[:, [2, 0]], y.any(1)


def compared(x: Tensor, a: Any) -> Any:
    y = torch.where((x > 0) & (x < 1) | (x <= -1), a(x), 0.5).masked_fill(x > 2, -5.0)
    return y, (x != 0).to(torch.int64), ~(x > 0.3), (x > 0).type_as(x), x.long().float().to(x.device)


def sized(x: Tensor, y: Tensor, a: Any) -> Tensor:
    z = a(x)[:, : y.size(1) - 3].contiguous()
    return z.view(x.size(0), -1).reshape(x.shape[0], 6, 4).transpose(1, 2).flatten(1).view(-1, 4, 6) + torch.ones_like(z)


def grids(x: Tensor, a: Any) -> Tensor:
    y = a(x)
    rows, columns = torch.meshgrid(torch.arange(y.size(2)), torch.arange(y.size(3)), indexing="ij")
    return y + torch.stack((columns, rows), -1).sum(-1) / y.size(2)


def parts(x: Tensor, a: Any) -> Tensor:
    p, q = a(x).chunk(2, -1)
    u, v, w = torch.split(p * q, 1, -1)
    first, *_ = (x.unbind(1)[k] for k in range(2))
    return torch.cat([u, w, v], 1).mean(1, keepdim=True) + first[:, None, :1]
