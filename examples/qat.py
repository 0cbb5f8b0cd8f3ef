"""Quantization-aware training: from a float network to W8A8 and W4A8 models in ONNX Runtime.

    python examples/qat.py [--data DIR]

Without DIR, the example first trains a small network on scikit-learn's digits.  With DIR, it uses the network and data of
`load.py` in that folder: `load("cifar10", 20) -> (model, (inputs, labels) to train, (inputs, labels) to test)`.
It prints one row per width: accuracy of the float model, after calibration, after training, emulated, and in the runtime.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

import qfunc
from qfunc import recipes, targets
from qfunc.estimators import Mse
from qfunc.specs import Target, edit
from qfunc.targets.runtimes import OnnxRuntimeRunner

EPOCHS = 5


class Net(nn.Module):
    """Convolutions with BatchNorm, a residual sum and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 1, 8, 8] -> [N, 10]."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)) + x)
        return self.fc(x.mean((2, 3)))


def digits() -> tuple[nn.Module, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return a network trained on the digits, the training set and the test set."""
    from sklearn.datasets import load_digits

    images, classes = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images).float().reshape(-1, 1, 8, 8) / 16, torch.from_numpy(classes).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train_set, test_set = ((x[part], y[part]) for part in (order[:1297], order[1297:]))
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    return trained(model, *train_set, optimizer, 8, "float"), train_set, test_set


def cifar(folder: Path) -> Any:
    """Return the trained network and the data of a folder."""
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location("load", folder / "load.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load("cifar10", 20)


Model = TypeVar("Model", bound=nn.Module)


def trained(model: Model, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer, epochs: int, name: str) -> Model:
    """Train by cross entropy in batches of 64; the learning rates decay to zero along a cosine."""
    steps = epochs * -(-len(x) // 64)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(1)
    model.train()
    bar = progress(total=steps, name=name)
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            schedule.step()
            bar.update()
    bar.close()
    return model.eval()


def progress(total: int, name: str) -> Any:
    """Return a progress bar, shown only in a terminal."""
    return tqdm(total=total, desc=name, leave=False, disable=not sys.stderr.isatty())


def classes(run: Any, x: Tensor) -> Tensor:
    """Return the predicted class of each input."""
    with torch.inference_mode():
        return torch.cat([torch.as_tensor(run(part)).argmax(1) for part in x.split(100)])


def row(target: Target, model: nn.Module, train_set: tuple[Tensor, Tensor], test_set: tuple[Tensor, Tensor]) -> list[float]:
    """Return accuracies in percent: float, calibrated, trained, emulated, in the runtime."""
    (x, y), (x_test, y_test) = train_set, test_set
    quantized = qfunc.quantize(target, batch_norm=qfunc.TrainBatchNorm())(model)
    calibrated = qfunc.calibrate(x[:500].split(100), progress=False)(quantized)
    found = [classes(m, x_test) for m in (model, calibrated)]
    groups = qfunc.parameter_groups(calibrated, lr=0.003, weight_decay=1e-4, quantizer_lr=1e-4)
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    student = trained(calibrated, x, y, optimizer, EPOCHS, target.name)
    exact, artifact = qfunc.emulate(target)(student), qfunc.deploy(target)(student)
    session = OnnxRuntimeRunner(threads=1).session(artifact.files["model.onnx"])
    found += [classes(m, x_test) for m in (student, exact)] + [classes(lambda v: session.run([v])[0], x_test)]
    return [100 * float((each == y_test).double().mean()) for each in found]


def main() -> None:
    """Print one row per weight width."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="a folder with a trained network and its images")
    folder = parser.parse_args().data
    model, train_set, test_set = digits() if folder is None else cifar(folder)
    reason = OnnxRuntimeRunner().comparable()
    widths: Iterable[int] = (7, 4) if reason else (8, 4)
    if reason:
        print(f"using 7-bit weights: {reason}", file=sys.stderr)
    print(f"{'':<8}{'float':>10}{'calibrated':>12}{'trained':>10}{'emulated':>10}{'runtime':>10}")
    for bits in widths:
        target = edit.pipe(
            targets.onnxruntime, recipes.lsq(), edit.weights(bits=bits, estimator=Mse()), edit.activations(estimator=Mse())
        )
        values = row(target, model, train_set, test_set)
        print(f"W{bits}A8    " + "".join(f"{v:>{w}.2f}" for v, w in zip(values, (10, 12, 10, 10, 10), strict=True)))


if __name__ == "__main__":
    main()
