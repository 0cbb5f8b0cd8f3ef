"""SqueezeNet 1.0 (Iandola et al., 2016, table 1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Fire(nn.Module):
    """A 1x1 squeeze, then 1x1 and 3x3 expansions side by side."""

    def __init__(self, channels: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze, self.squeeze_activation = nn.Conv2d(channels, squeezed, 1), nn.ReLU(inplace=True)
        self.expand1x1, self.expand1x1_activation = nn.Conv2d(squeezed, expanded, 1), nn.ReLU(inplace=True)
        self.expand3x3, self.expand3x3_activation = nn.Conv2d(squeezed, expanded, 3, padding=1), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """[N, channels, H, W] -> [N, 2 expanded, H, W]."""
        x = self.squeeze_activation(self.squeeze(x))
        wide = [self.expand1x1_activation(self.expand1x1(x)), self.expand3x3_activation(self.expand3x3(x))]
        return torch.cat(wide, 1)


class SqueezeNet(nn.Module):
    """SqueezeNet 1.0 whose fires squeeze to multiples of `width` channels."""

    def __init__(self, width: int = 2, classes: int = 5) -> None:
        super().__init__()
        w = width
        self.features = nn.Sequential(
            nn.Conv2d(3, 6 * w, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, ceil_mode=True),
            Fire(6 * w, w, 4 * w), Fire(8 * w, w, 4 * w), Fire(8 * w, 2 * w, 8 * w), nn.MaxPool2d(3, 2, ceil_mode=True),
            Fire(16 * w, 2 * w, 8 * w), Fire(16 * w, 3 * w, 12 * w), Fire(24 * w, 3 * w, 12 * w), Fire(24 * w, 4 * w, 16 * w),
            nn.MaxPool2d(3, 2, ceil_mode=True), Fire(32 * w, 4 * w, 16 * w),
        )  # fmt: skip
        last = nn.Conv2d(32 * w, classes, 1)
        self.classifier = nn.Sequential(nn.Dropout(0.5), last, nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d((1, 1)))

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] -> [N, classes]."""
        return torch.flatten(self.classifier(self.features(x)), 1)
