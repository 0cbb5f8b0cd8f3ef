"""Small convolutional networks built from a plain list of steps, for property tests."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor, nn


@frozen
class Block:
    """One block: its kind, and for kinds with weights a convolution `channels -> out`.

    Kinds: conv; add, mul and concat (of the block's input and a convolution that preserves the size); max_pool,
    avg_pool; adaptive and mean (global averages); linear (of flattened images) and dense (of vectors).

    >>> Block("conv", 3, 8, 3, act="relu").groups
    1
    """

    kind: str
    channels: int = 0
    out: int = 0
    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    act: str | None = None
    norm: bool = False
    bias: bool = True


class SmallNet(nn.Module):
    """A chain of blocks in evaluation mode; `seed` determines the weights and batch statistics.

    >>> SmallNet((Block("conv", 3, 4), Block("mean"), Block("linear", 4, 5)))(torch.ones(2, 3, 7, 5)).shape
    torch.Size([2, 5])
    """

    def __init__(self, steps: tuple[Block, ...], seed: int = 0) -> None:
        super().__init__()
        self.steps, self.seed = steps, seed
        self.layers = nn.ModuleList(_layer(step) for step in steps)
        self.eval()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, tensor in self.state_dict().items():
                if name.endswith("running_var"):
                    tensor.uniform_(0.5, 2.0, generator=generator)
                elif name.endswith("weight") and tensor.ndim == 1:
                    tensor.uniform_(-1.5, 1.5, generator=generator)  # a batch norm's gamma, of either sign
                elif tensor.is_floating_point():
                    tensor.normal_(0.0, 1.0 / max(1, tensor[0].numel()) ** 0.5, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return the classes [N, classes] of images [N, 3, H, W]."""
        for step, layer in zip(self.steps, self.layers, strict=True):
            if step.kind == "add":
                x = activate(x + layer(x), step.act)
            elif step.kind == "mul":
                x = activate(x * layer(x), step.act)
            elif step.kind == "concat":
                x = activate(torch.cat([x, layer(x)], 1), step.act)
            elif step.kind == "mean":
                x = x.mean((2, 3))
            elif step.kind == "linear":
                x = layer(torch.flatten(x, 1))
            else:
                x = activate(layer(x), step.act)
        return x

    def __repr__(self) -> str:
        return f"SmallNet({self.steps!r}, seed={self.seed})"


def _layer(step: Block) -> nn.Module:
    if step.kind == "max_pool":
        return nn.MaxPool2d(step.kernel, step.stride, padding=step.kernel // 2)
    if step.kind == "avg_pool":
        return nn.AvgPool2d(step.kernel, step.stride, padding=step.kernel // 2)
    if step.kind == "adaptive":
        return nn.AdaptiveAvgPool2d(1)
    if step.kind == "mean":
        return nn.Identity()
    if step.kind in ("linear", "dense"):
        return nn.Linear(step.channels, step.out, bias=step.bias)
    pad = step.dilation * (step.kernel // 2)
    conv = nn.Conv2d(step.channels, step.out, step.kernel, step.stride, pad, step.dilation, step.groups, bias=step.bias)
    return nn.Sequential(conv, nn.BatchNorm2d(step.out)) if step.norm else conv


def activate(x: Tensor, name: str | None) -> Tensor:
    """Return x, relu(x) or relu6(x)."""
    return x if name is None else F.relu(x) if name == "relu" else F.relu6(x)
