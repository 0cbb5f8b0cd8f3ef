"""Small networks with the structures that units must follow."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import qfunc
from qfunc import targets
from qfunc.graph.sites import quantizer_nodes


class Chain(nn.Module):
    """Convolutions in a row, a linear layer; no two sizes alike."""

    def __init__(self, depth: int = 2, width: int = 4) -> None:
        super().__init__()
        self.body = nn.ModuleList([nn.Conv2d(3 if i == 0 else width, width, 3, padding=1) for i in range(depth)])
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.body:
            x = F.relu(conv(x))
        return self.head(x.mean((2, 3)))


class Block(nn.Module):
    """A residual block whose shortcut has a conv of its own."""

    def __init__(self, inner: int, outer: int, shortcut: bool) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(inner, outer, 3, padding=1), nn.Conv2d(outer, outer, 3, padding=1)
        self.short = nn.Conv2d(inner, outer, 1) if shortcut else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.short(x) + self.two(F.relu(self.one(x))))


class Resnet(nn.Module):
    """A stem, two residual blocks, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.first, self.second = Block(4, 4, False), Block(4, 6, True)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(F.relu(self.stem(x))))
        return self.head(x.mean((2, 3)).reshape(x.shape[0], -1))


class Inverted(nn.Module):
    """Two inverted bottlenecks, the first without a residual add; the activations are written out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.wide = nn.ModuleList([nn.Conv2d(c, 8, 1) for c in (4, 5)])
        self.deep = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1, groups=8) for _ in range(2)])
        self.thin = nn.ModuleList([nn.Conv2d(8, 5, 1) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        for i in range(2):
            y = self.wide[i](x)
            y = F.relu(self.deep[i](y * torch.sigmoid(y)))
            x = self.thin[i](y) if i == 0 else x + self.thin[i](y)
        return x


class Attention(nn.Module):
    """Attention with a mask of token ids, and an MLP, each with a residual add; norms before them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 8)
        self.norms = nn.ModuleList([nn.LayerNorm(8) for _ in range(2)])
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.table(ids)
        b, n, c = x.shape
        q, k, v = self.qkv(self.norms[0](x)).reshape(b, n, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1)).masked_fill(mask[:, None, None] == 0, -10000.0)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Pair(nn.Module):
    """Two inputs, a weight that two ops read, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.both = nn.Linear(4, 6), nn.Linear(3, 6), nn.Linear(6, 6)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        a, b = F.relu(self.left(a)), F.relu(self.right(b))
        return self.both(a + b), self.both(a)


def images(count: int = 12, seed: int = 0) -> Tensor:
    """Images of 6 by 7 pixels."""
    return torch.randn(count, 3, 6, 7, generator=torch.Generator().manual_seed(seed))


def calibrated(model: nn.Module, batches: list[Any], target: Any = None, seed: int = 0) -> fx.GraphModule:
    """The model with weights of its own seed, on a target of few bits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / max(p[0].numel() if p.ndim > 1 else 4, 1) ** 0.5)
    return qfunc.calibrate(batches)(qfunc.quantize(target or targets.academic(3, 4))(model))


def codes(model: fx.GraphModule) -> dict[str, Tensor]:
    """The integer codes of each weight by site."""
    found = {}
    for node in model.graph.nodes:
        module: Any = model.get_submodule(str(node.target)) if node.op == "call_module" else None
        if getattr(getattr(module, "site", None), "slot", "") == "weight":
            found[module.site.name] = module.export(model.get_parameter(str(node.all_input_nodes[0].target)))[0]
    return found


def functions(model: fx.GraphModule) -> dict[str, Any]:
    """The quantize function of each weight by site."""
    return {s.module.site.name: s.module.site.function for s in quantizer_nodes(model) if s.module.site.slot == "weight"}
