"""ResNet-18 (He et al., Deep Residual Learning, 2015, table 1)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """conv-bn-relu, conv-bn, the input or its projection added, relu."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        projects = stride > 1 or channels != out
        projection = (nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.downsample = nn.Sequential(*projection) if projects else None

    def forward(self, x: Tensor) -> Tensor:
        """[N, channels, H, W] -> [N, out, H/stride, W/stride]."""
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    """ResNet-18 with `width` channels in its first stage."""

    def __init__(self, width: int = 4, classes: int = 5) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        widths = (width, width, 2 * width, 4 * width, 8 * width)
        for i, (channels, out) in enumerate(pairwise(widths), start=1):
            blocks = BasicBlock(channels, out, 1 if i == 1 else 2), BasicBlock(out, out, 1)
            setattr(self, f"layer{i}", nn.Sequential(*blocks))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] -> [N, classes]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))
