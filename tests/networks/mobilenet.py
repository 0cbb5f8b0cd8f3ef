"""MobileNetV2 (Sandler et al., 2018, table 2)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLOCKS = ((1, 1, 1, 1), (6, 2, 2, 2), (6, 3, 3, 2), (6, 4, 4, 2), (6, 5, 3, 1), (6, 6, 3, 2), (6, 7, 1, 1))
"""Expansion, channels in units of the width, repeats and first stride of each stage."""


def conv_norm_act(channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """conv-bn-relu6."""
    conv = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    """A pointwise expansion, a depthwise convolution, a linear projection; the input added where shapes agree."""

    def __init__(self, channels: int, out: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = channels * expansion
        expand = [conv_norm_act(channels, hidden, 1)] if expansion > 1 else []
        depthwise = conv_norm_act(hidden, hidden, 3, stride, groups=hidden)
        self.conv = nn.Sequential(*expand, depthwise, nn.Conv2d(hidden, out, 1, bias=False), nn.BatchNorm2d(out))
        self.adds = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        """[N, channels, H, W] -> [N, out, H/stride, W/stride]."""
        return x + self.conv(x) if self.adds else self.conv(x)


class MobileNetV2(nn.Module):
    """MobileNetV2 whose stages count their channels in units of `width`."""

    def __init__(self, width: int = 2, classes: int = 5) -> None:
        super().__init__()
        channels, layers = 2 * width, [conv_norm_act(3, 2 * width, 3, 2)]
        for expansion, units, repeats, stride in BLOCKS:
            for i in range(repeats):
                layers.append(InvertedResidual(channels, units * width, stride if i == 0 else 1, expansion))
                channels = units * width
        self.features = nn.Sequential(*layers, conv_norm_act(channels, 8 * width, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(8 * width, classes))

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] -> [N, classes]."""
        x = F.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))
