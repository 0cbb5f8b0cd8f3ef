"""Small networks, one for each shape of model that the transforms must take."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    """conv-bn-relu, a residual add, pooling and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.pool(self.relu(self.bn2(self.conv2(x)) + x))
        return self.fc(self.drop(x.mean((2, 3))))


class Branches(nn.Module):
    """A depthwise conv and a pointwise one, concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.pointwise = nn.Conv2d(6, 4, 1)
        self.head = nn.Conv2d(10, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return self.head(torch.cat([self.depthwise(x), self.pointwise(x)], 1))


class TwoInputs(nn.Module):
    """Two inputs, a third that is optional, and a tuple of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(3, 4)

    def forward(self, a: Tensor, b: Tensor, gain: float = 2.0) -> tuple[Tensor, Tensor]:
        a, b = self.left(a), self.right(b)
        return a + b, F.relu(a) * gain


class DictOutput(nn.Module):
    """Outputs in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = F.relu(self.body(x))
        return {"features": h, "logits": self.head(h)}


class DictInput(nn.Module):
    """One input, which is a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 2), nn.Linear(3, 2)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.left(batch["a"]) + self.right(batch["b"])


class Tokens(nn.Module):
    """An embedding, a mean over the tokens, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(11, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids))


class SharedConv(nn.Module):
    """One conv that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.relu(self.conv(x)))


class SharedWeight(nn.Module):
    """Two linear layers with one weight and two biases."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.first(x)))


def image(n: int = 2) -> Tensor:
    """A batch of images."""
    return torch.randn(n, 3, 8, 8)


def settled(model: nn.Module) -> nn.Module:
    """The model with batch statistics and affine parameters that are no defaults."""
    with torch.no_grad():
        for m in model.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.running_mean.normal_()
                m.running_var.uniform_(0.5, 2)
                m.weight.uniform_(-1.5, 1.5)
                m.bias.normal_()
    return model


def network(name: str) -> tuple[nn.Module, object]:
    """(a model of that name with weights of its own, a batch)."""
    torch.manual_seed(sum(map(ord, name)))
    made = {
        "residual": lambda: (Residual(), image()),
        "branches": lambda: (Branches(), image()),
        "two_inputs": lambda: (TwoInputs(), (torch.randn(5, 4), torch.randn(5, 3))),
        "dict_output": lambda: (DictOutput(), torch.randn(5, 4)),
        "tokens": lambda: (Tokens(), torch.randint(0, 11, (2, 6))),
        "shared_conv": lambda: (SharedConv(), torch.randn(2, 4, 6, 6)),
        "shared_weight": lambda: (SharedWeight(), torch.randn(5, 4)),
    }
    model, batch = made[name]()
    return settled(model).eval(), batch


NAMES = ("residual", "branches", "two_inputs", "dict_output", "tokens", "shared_conv", "shared_weight")
