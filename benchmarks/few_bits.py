"""A trained CIFAR ResNet-20 with few bits: folded and trained BatchNorms, with and without trained scales.

    python benchmarks/few_bits.py --data DIR [--seeds 3]

DIR contains `load.py` with `load("cifar10", 20, n_calib=N) -> (model, (inputs, labels) to train, (inputs, labels) to test)`.
Training uses SGD with momentum 0.9, cross entropy, batches of 100 images, and 500 test images.  The mean of the seeds is
printed, and the smallest and largest result; a seed chooses the order of the images.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fidelity import loader, predictions
from torch import Tensor, nn

import qfunc
from qfunc import recipes, targets
from qfunc.analysis.report_format import table

HEAD = ("bits", "recipe", "BatchNorms", "rate", "norm of the first gradient", "before", "after", "seeds")
ROWS = (
    (3, "", qfunc.FoldBatchNorm(), 0.01, 24), (3, "lsq", qfunc.FoldBatchNorm(), 0.01, 24),
    (3, "lsq", qfunc.FoldBatchNorm(), 0.001, 24), (3, "", qfunc.TrainBatchNorm(), 0.01, 24),
    (3, "lsq", qfunc.TrainBatchNorm(), 0.01, 24), (8, "lsq", qfunc.FoldBatchNorm(), 0.01, 16),
)  # fmt: skip
"""Bits, recipe, treatment of BatchNorms, learning rate, steps."""


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images with the right class, in percent."""
    found = predictions(model.eval(), images)
    return 100 * float((found == labels).float().mean())


def trained(network: nn.Module, row: Any, seed: int, train: Any, test: Any) -> tuple[float, float, float]:
    """Return the norm of the first gradient, and the accuracy before and after the training."""
    bits, recipe, batch_norm, rate, steps = row
    images, labels = train
    target = targets.academic(bits, bits)
    edited = recipes.lsq()(target) if recipe else target
    quantized = qfunc.quantize(edited, batch_norm=batch_norm)(network)
    model = qfunc.calibrate([images[:100], images[100:200]], progress=False)(quantized)
    before = accuracy(model, *test)
    optimizer = torch.optim.SGD(model.train().parameters(), lr=rate, momentum=0.9)
    order, norms = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed)), list[float]()
    for step in range(steps):
        batch = order[100 * step : 100 * (step + 1)]
        optimizer.zero_grad()
        loss: Any = F.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        squares = sum(float((p.grad**2).sum()) for p in model.parameters() if p.grad is not None)
        norms.append(squares**0.5)
        optimizer.step()
    return norms[0], before, accuracy(model, *test)


def main() -> None:
    """Run the rows, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with load.py")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    network, train, (images, labels) = loader(options.data)("cifar10", 20, n_calib=20_000)
    test, lines = (images[:500], labels[:500]), []
    print(f"float: {accuracy(network, *test):.1f}")
    for row in ROWS:
        runs = [trained(network, row, seed, train, test) for seed in range(options.seeds)]
        norm, before, after = (statistics.mean(run[i] for run in runs) for i in range(3))
        low, high = min(run[2] for run in runs), max(run[2] for run in runs)
        name = "folded" if isinstance(row[2], qfunc.FoldBatchNorm) else "trained"
        ends = f"{low:.1f} to {high:.1f}"
        lines.append((str(row[0]), row[1] or "none", name, str(row[3]), f"{norm:.2g}", f"{before:.1f}", f"{after:.1f}", ends))
    print(table(HEAD, lines))


if __name__ == "__main__":
    main()
