"""A ResNet-18-shaped network with random weights and plausible BatchNorm statistics."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout)
        self.conv2, self.bn2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or cin != cout:
            self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + shortcut)


class ResNet18(nn.Module):
    """He et al., arXiv:1512.03385, table 1, 18 layers."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        plan = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        self.layers = nn.Sequential(*(nn.Sequential(Block(i, o, s), Block(o, o, 1)) for i, o, s in plan))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(self.avgpool(self.layers(x)).flatten(1))


def resnet18(seed: int = 0) -> nn.Module:
    """Return a He-initialised network, with BatchNorm statistics from a few training-mode passes."""
    torch.manual_seed(seed)
    model = ResNet18()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
    with torch.no_grad():
        for _ in range(4):
            model.train()(torch.randn(4, 3, 96, 96))
    return model.eval()


class DenseNet(nn.Module):
    """Huang et al., arXiv:1608.06993: every layer reads the outputs of all earlier ones.  For images of 32 x 32."""

    def __init__(self, growth: int = 12, depth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 2 * growth, 3, 1, 1, bias=False), nn.BatchNorm2d(2 * growth), nn.ReLU())
        self.stages, self.between, width = nn.ModuleList(), nn.ModuleList(), 2 * growth
        for _ in range(3):
            self.stages.append(nn.ModuleList(self._layer(width + i * growth, growth) for i in range(depth)))
            self.between.append(self._layer(width + depth * growth, width, 1))
        self.head = nn.Linear(width, 10)

    @staticmethod
    def _layer(cin: int, cout: int, kernel: int = 3) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(cin, cout, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(cout), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores."""
        x = self.stem(x)
        for layers, between in zip(self.stages, self.between, strict=True):
            for layer in layers:  # type: ignore[attr-defined]
                x = torch.cat([x, layer(x)], 1)
            x = nn.functional.avg_pool2d(between(x), 2)
        return self.head(x.mean((2, 3)))
