"""Networks that lose accuracy for one known reason each, and the reason's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qfunc import estimators, targets
from qfunc.specs import PerTensor, Target, edit


class Failure(NamedTuple):
    """A network, its target, its batches, and the cause that was planted."""

    model: nn.Module
    target: Target
    batches: list[Tensor]
    calibration: list[Tensor] | None
    cause: str
    metric: Callable[[list[Tensor], Any], Tensor] | None = None


class Boxes(nn.Module):
    """Boxes in pixels and scores of classes in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.boxes, self.classes = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 6, 1)
        self.boxes.weight.data.mul_(500)

    def forward(self, x: Tensor) -> Any:
        y = self.body(x)
        return torch.cat([self.boxes(y), self.classes(y)], 1)


class Attention(nn.Module):
    """One head of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.query.weight.data.mul_(4)

    def forward(self, x: Tensor) -> Any:
        scores = torch.matmul(self.query(x), self.key(x).transpose(1, 2))
        return torch.matmul(scores.softmax(-1), self.value(x))


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 1)
    )  # fmt: skip


def separable() -> nn.Sequential:
    """A MobileNet's layers: a few depthwise filters are far larger than the others, and their outputs clipped."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 1), nn.ReLU6(), nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.ReLU6(), nn.Conv2d(16, 8, 1)
    )
    net[2].weight.data[[3, 9]] *= 200
    return net


def per_tensor_mobilenet() -> Failure:
    target = edit.weights(granularity=PerTensor())(targets.onnxruntime)
    return Failure(separable(), target, images(4), None, "channels of weights")


def boxes_beside_classes() -> Failure:
    model = Boxes()

    def accuracy_of_classes(outputs: list[Tensor], batch: Tensor) -> Tensor:
        """Minus the relative squared error of the classes."""
        with torch.no_grad():
            wanted = model(batch)[:, 4:]
        return -((outputs[0][:, 4:] - wanted).square().sum() / wanted.square().sum())

    return Failure(model, targets.litert, images(4), None, "tied ranges", accuracy_of_classes)


def outlier_channel() -> Failure:
    net = network()
    net[0].weight.data[5].mul_(300)
    net[2].weight.data[:, 5].div_(300)
    return Failure(net, targets.onnxruntime, images(4), None, "channels of activations")


def clipped_softmax() -> Failure:
    target = edit.override(edit.name("matmul"), activations={"estimator": estimators.Quantile(0.05)})(targets.onnxruntime)
    return Failure(Attention(), target, [torch.randn(16, 6, 8) for _ in range(4)], None, "clipping")


def narrow_calibration() -> Failure:
    return Failure(network(), targets.onnxruntime, images(4), [0.1 * x for x in images(2)], "calibration batches")


def images(count: int) -> list[Tensor]:
    return [torch.randn(8, 3, 12, 12) for _ in range(count)]


FAILURES: tuple[Callable[[], Failure], ...] = (
    per_tensor_mobilenet, boxes_beside_classes, outlier_channel, clipped_softmax, narrow_calibration,
)  # fmt: skip
