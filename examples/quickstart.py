"""Train a small network, quantize it for ONNX Runtime, and compare simulation, emulation and runtime.

    python examples/quickstart.py [output directory]

This takes a few seconds and needs no download, because scikit-learn contains the digits.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from tqdm import tqdm

import qfunc
from qfunc import targets
from qfunc.specs import edit, selectors
from qfunc.targets.runtimes import OnnxRuntimeRunner


class Net(nn.Module):
    """Convolutions with BatchNorm, a residual sum, pooling and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.conv2, self.bn2 = nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.conv3, self.bn3 = nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)
        self.pool, self.fc = nn.MaxPool2d(2), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 1, 8, 8] -> [N, 10]."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)) + x)
        x = F.relu(self.bn3(self.conv3(self.pool(x))))
        return self.fc(x.mean((2, 3)))


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images and classes, then test images and classes: 1797 images in a fixed random order."""
    images, classes = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images).float().reshape(-1, 1, 8, 8) / 16, torch.from_numpy(classes).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1297], order[1297:]
    return x[train], y[train], x[test], y[test]


def progress(items: Iterable[Any], name: str) -> Iterable[Any]:
    """Return the items with a progress bar, shown only in a terminal."""
    return tqdm(items, name, leave=False, disable=not sys.stderr.isatty())


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int = 8) -> nn.Module:
    """Train by Adam on the cross entropy; the learning rate decays to zero along a cosine."""
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    generator = torch.Generator().manual_seed(1)
    for _ in progress(range(epochs), "train"):
        for batch in torch.randperm(len(x), generator=generator).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        schedule.step()
    return model.eval()


def accuracy(run: Callable[[Tensor], Any], x: Tensor, y: Tensor) -> str:
    """Return the top-1 accuracy in percent."""
    with torch.inference_mode():
        right = torch.as_tensor(run(x)).argmax(1) == y
    return f"{100 * right.double().mean():.2f} %"


def milliseconds(runs: Sequence[Callable[[Tensor], Any]], x: Tensor, rounds: int = 50) -> list[str]:
    """Return the median time of a batch for each function; they take turns, so that other work delays all alike."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, taken in zip(runs, times, strict=True):
            start = time.perf_counter()
            run(x)
            taken.append(1000 * (time.perf_counter() - start))
    return [f"{statistics.median(t):.2f} ms" for t in times]


def main(directory: Path) -> None:
    """Train, quantize, deploy and verify; print a table."""
    torch.manual_seed(0)
    target = targets.onnxruntime
    if reason := OnnxRuntimeRunner().comparable():
        print(f"using 7-bit weights: {reason}", file=sys.stderr)
        target = edit.weights(bits=7)(target)
    x, y, x_test, y_test = digits()
    model = train(Net(), x, y)

    calibrated = qfunc.calibrate(x[:200].split(50))(qfunc.quantize(target)(model))
    exact = qfunc.emulate(target)(calibrated)
    artifact = qfunc.deploy(target)(calibrated)
    report = qfunc.verify(target, latency=False)(calibrated, progress(x_test.split(100), "verify"))
    artifact.save(directory)

    # The same network through the same steps, with every op left in float.
    unquantized = edit.pipe(target, edit.skip(selectors.Everything()))
    plain = qfunc.deploy(unquantized)(qfunc.calibrate(x[:200].split(50))(qfunc.quantize(unquantized)(model)))
    (float_file, int8_file) = (a.files["model.onnx"] for a in (plain, artifact))
    (float_session, int8_session) = (OnnxRuntimeRunner(threads=1).session(f) for f in (float_file, int8_file))

    latencies = milliseconds([lambda v, s=s: s.run([v]) for s in (float_session, int8_session)], x_test[:100])
    rows = [
        ("accuracy, float", accuracy(model, x_test, y_test)),
        ("accuracy, simulated", accuracy(calibrated, x_test, y_test)),
        ("accuracy, emulated", accuracy(exact, x_test, y_test)),
        ("accuracy, ONNX Runtime", accuracy(lambda v: int8_session.run([v])[0], x_test, y_test)),
        ("top-1 agreement with float", f"{100 * (report.top1 or 0.0):.2f} %"),
        ("SQNR of the outputs", f"{report.sqnr:.1f} dB"),
        ("multiply-accumulates on integers", f"{100 * report.integer_products / report.products:.0f} %"),
        ("integer tensors compared", f"{report.tensors}"),
        ("elements compared", f"{report.elements:,}"),
        ("mismatches, emulation and runtime", f"{report.mismatches}"),
        ("file, float", f"{len(float_file):,} bytes"),
        ("file, int8", f"{len(int8_file):,} bytes"),
        ("latency, float, 100 images", latencies[0]),
        ("latency, int8, 100 images", latencies[1]),
    ]
    print(f"{target.name}: {report.verdict}")
    for name, value in rows:
        print(f"  {name:<36}{value:>14}")
    print("  written:", ", ".join(sorted(p.name for p in directory.iterdir())))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
