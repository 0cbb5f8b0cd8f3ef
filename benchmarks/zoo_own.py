"""Small networks that no package offers with plain tensor outputs: U-Nets, and heads like those of YOLO, SSD and DETR."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _conv(cin: int, cout: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(cin, cout, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(cout), nn.SiLU(True))


class UNet(nn.Module):
    """Ronneberger et al., arXiv:1505.04597: transposed convolutions, concatenated with the contracting path."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        widths = [width * 2**i for i in range(4)]
        self.down = nn.ModuleList(self._twice(i, o) for i, o in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[-2::-1])
        self.merge = nn.ModuleList(self._twice(2 * w, w) for w in widths[-2::-1])
        self.head = nn.Conv2d(width, 5, 1)

    @staticmethod
    def _twice(cin: int, cout: int) -> nn.Sequential:
        parts = [m for i in (cin, cout) for m in (nn.Conv2d(i, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(True))]
        return nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores for each pixel."""
        kept = []
        for block in self.down:
            x = block(x if not kept else F.max_pool2d(x, 2))
            kept.append(x)
        for up, merge, other in zip(self.up, self.merge, kept[-2::-1], strict=True):
            x = merge(torch.cat([other, up(x)], 1))
        return self.head(x)


class UNet3d(nn.Module):
    """A U-Net over volumes, with resizing instead of transposed convolutions; the image's channels are the depth."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv3d(1, width, 3, 1, 1), nn.BatchNorm3d(width), nn.LeakyReLU(0.1))
        self.inner = nn.Sequential(nn.Conv3d(width, 2 * width, 3, (1, 2, 2), 1), nn.BatchNorm3d(2 * width), nn.ReLU())
        self.last = nn.Conv3d(3 * width, 2, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores for each voxel."""
        x = self.first(x.unsqueeze(1))
        y = F.interpolate(self.inner(x), scale_factor=(1, 2, 2), mode="nearest")
        return self.last(torch.cat([x, y], dim=1))


class _Split(nn.Module):
    # YOLOv8's block: half of the channels pass through bottlenecks, and the output of each step is kept.
    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        half = cout // 2
        self.first, self.last = _conv(cin, cout, 1), _conv(3 * half, cout, 1)
        self.inner = nn.Sequential(_conv(half, half), _conv(half, half))

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).chunk(2, 1))
        parts.append(parts[-1] + self.inner(parts[-1]))
        return self.last(torch.cat(parts, 1))


class YoloLike(nn.Module):
    """A backbone with splits, pooling pyramids, top-down and bottom-up paths, decoupled heads, boxes from distributions."""

    def __init__(self, width: int = 16, classes: int = 5, bins: int = 8) -> None:
        super().__init__()
        a, b, c = 2 * width, 4 * width, 8 * width
        self.stem = nn.Sequential(_conv(3, width, 3, 2), _conv(width, a, 3, 2), _Split(a, a))
        self.middle = nn.Sequential(_conv(a, b, 3, 2), _Split(b, b))
        self.deep = nn.Sequential(_conv(b, c, 3, 2), _Split(c, c))
        self.squeeze, self.spread = _conv(c, c // 2, 1), _conv(2 * c, c, 1)
        self.up, self.down, self.out = _Split(c + b, b), _conv(b, b, 3, 2), _Split(b + c, c)
        self.boxes = nn.ModuleList(nn.Sequential(_conv(w, b), nn.Conv2d(b, 4 * bins, 1)) for w in (b, c))
        self.classes = nn.ModuleList(nn.Sequential(_conv(w, b), nn.Conv2d(b, classes, 1)) for w in (b, c))
        self.register_buffer("bins", torch.arange(bins, dtype=torch.float32))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return distances to the four sides and class scores, for every cell of two scales."""
        middle = self.middle(self.stem(x))
        pooled = [self.squeeze(self.deep(middle))]
        for _ in range(3):
            pooled.append(F.max_pool2d(pooled[-1], 5, 1, 2))
        deep = self.spread(torch.cat(pooled, 1))
        near = self.up(torch.cat([F.interpolate(deep, scale_factor=2.0), middle], 1))
        far = self.out(torch.cat([self.down(near), deep], 1))
        boxes = torch.cat([h(v).flatten(2) for h, v in zip(self.boxes, (near, far), strict=True)], 2)
        scores = torch.cat([h(v).flatten(2) for h, v in zip(self.classes, (near, far), strict=True)], 2)
        sides = boxes.view(boxes.shape[0], 4, self.bins.shape[0], -1).softmax(2)
        return {"boxes": (sides * self.bins.view(1, 1, -1, 1)).sum(2), "scores": scores.sigmoid()}


class SsdLike(nn.Module):
    """Depthwise blocks and one head per scale; the outputs are permuted, flattened and concatenated."""

    def __init__(self, width: int = 16, anchors: int = 3, classes: int = 5) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 4 * width]
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.ReLU6(True))
        self.scales = nn.ModuleList(self._block(i, o) for i, o in pairwise(widths))
        self.heads = nn.ModuleList(nn.Conv2d(w, anchors * (classes + 4), 3, 1, 1) for w in widths[1:])
        self.classes = classes

    @staticmethod
    def _block(cin: int, cout: int) -> nn.Sequential:
        depthwise = nn.Conv2d(cin, cin, 3, 2, 1, groups=cin, bias=False)
        pointwise = nn.Conv2d(cin, cout, 1, bias=False)
        return nn.Sequential(depthwise, nn.BatchNorm2d(cin), nn.ReLU6(True), pointwise, nn.BatchNorm2d(cout), nn.ReLU6(True))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (boxes, class scores) of every anchor."""
        x, found = self.stem(x), []
        for scale, head in zip(self.scales, self.heads, strict=True):
            x = scale(x)
            found.append(head(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, self.classes + 4))
        anchors = torch.cat(found, 1)
        return anchors[..., :4], anchors[..., 4:].softmax(-1)


class DetrLike(nn.Module):
    """Carion et al., arXiv:2005.12872: convolutions, an encoder over positions, a decoder over learned queries."""

    def __init__(self, width: int = 32, queries: int = 10, classes: int = 5, cells: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv(3, 16, 3, 2), _conv(16, 32, 3, 2), _conv(32, width, 3, 2))
        self.transformer = nn.Transformer(width, 4, 2, 2, 64, dropout=0.0, batch_first=True)
        self.queries = nn.Parameter(torch.randn(queries, width))
        self.places = nn.Parameter(torch.randn(cells * cells, width))
        self.classes = nn.Linear(width, classes + 1)
        self.boxes = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return class scores and boxes for each query."""
        features = self.body(x).flatten(2).transpose(1, 2) + self.places
        asked = self.queries.unsqueeze(0).expand(x.shape[0], -1, -1)
        found = self.transformer(features, asked)
        return {"scores": self.classes(found), "boxes": self.boxes(found).sigmoid()}
