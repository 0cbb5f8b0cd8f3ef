"""Accuracy of a trained CIFAR ResNet-20 on real images: float, after min/max calibration, after training with three seeds.

`qat.py --data DIR` calls this module.  DIR contains `load.py` with `load("cifar10", 20, n_calib=N) -> (model, (inputs, labels)
to train, (inputs, labels) to test)`.  Accuracy uses the first 5,000 test images.  For targets with an emulation, the classes of
the trained model are compared with the emulated ones, one by one.  For ONNX Runtime, they are also compared with those of the
deployed model.

The float network is the teacher: the loss is the divergence from its class probabilities.  Training uses SGD with momentum 0.9,
batches of 100 images (half of them mirrored), and rates that decay along a cosine.  With 8 bits, BatchNorms are frozen from the
start, because there is little to learn and the statistics of a few batches cost more.  A run (one seed of one recipe, on one
thread) is appended to a file and not repeated.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from artifacts import runnable
from attrs import frozen
from fidelity import loader
from torch import Tensor, nn
from tqdm import tqdm

import qfunc
from qfunc import recipes, targets
from qfunc.analysis.report_format import table
from qfunc.estimators import Mse
from qfunc.specs import Target, edit
from qfunc.targets.runtimes import OnnxRuntimeRunner

TRAINED, TESTED, BATCH = 20_000, 5_000, 100


@frozen(eq=False)
class Recipe:
    """A row: target, start, number of steps and learning rates, with MQBench's result where it was measured."""

    name: str
    target: Target
    edit: Callable[[Target], Target]
    steps: int
    lr: float
    quantizer_lr: float
    mqbench: float | None = None
    frozen: bool = False
    full: bool = False


def lsq(target: Target) -> Target:
    """Return LSQ, starting from the least squared error."""
    return edit.pipe(target, recipes.lsq(), edit.weights(estimator=Mse()), edit.activations(estimator=Mse()))


def lsq_plus(target: Target) -> Target:
    """Return LSQ+, starting from the least squared error."""
    return edit.pipe(target, recipes.lsq_plus(), edit.weights(estimator=Mse()))


ROWS = (
    Recipe("onnxruntime LSQ W8A8", runnable(targets.onnxruntime), lsq, 20, 0.0003, 0.0003, frozen=True),
    Recipe("tensorrt LSQ W8A8", targets.tensorrt, lsq, 60, 0.001, 0.0003, 87.42, frozen=True),
    Recipe("vitis TQT W8A8", targets.vitis, recipes.tqt(), 20, 0.0003, 0.0003, 86.96, frozen=True),
    Recipe("academic LSQ W4A4", targets.academic(4, 4), lsq, 200, 0.02, 0.01, 86.20),
    Recipe("academic LSQ+ W4A4", targets.academic(4, 4), lsq_plus, 200, 0.02, 0.01),
    Recipe("academic LSQ W2A4", targets.academic(2, 4), lsq, 200, 0.04, 0.01, 79.26),
    Recipe("academic PACT W4A4", targets.academic(4, 4), recipes.pact(), 200, 0.02, 0.01, full=True),
    Recipe("academic DSQ W4A4", targets.academic(4, 4), recipes.dsq(), 200, 0.02, 0.01, full=True),
    Recipe("academic DoReFa W4A4", targets.academic(4, 4), recipes.dorefa(), 200, 0.02, 0.01, full=True),
)  # fmt: skip
"""MQBench's results: one seed, its own schedule of 100 steps (SGD 0.01).  The 8-bit results are calibration only."""

Set = tuple[Tensor, Tensor]


def classes(run: Any, x: Tensor) -> Tensor:
    """Return the predicted class of each input."""
    with torch.inference_mode():
        return torch.cat([torch.as_tensor(run(part)).argmax(1) for part in x.split(100)])


def accuracy(found: Tensor, y: Tensor) -> float:
    """Return the accuracy in percent."""
    return 100 * float((found == y).double().mean())


def calibrated(target: Target, model: nn.Module, x: Tensor, norms: Any) -> Any:
    """Return the quantized model, calibrated with 1,000 images."""
    return qfunc.calibrate(x[:1000].split(100), progress=False)(qfunc.quantize(target, batch_norm=norms)(model))


def trained(recipe: Recipe, teacher: nn.Module, x: Tensor, seed: int) -> Any:
    """Return the model after the recipe's steps, in evaluation mode."""
    student = calibrated(recipe.edit(recipe.target), teacher, x, qfunc.TrainBatchNorm()).train()
    learns = any(True for m in student.modules() if hasattr(m, "site") for _ in m.parameters())
    groups: Any = (
        qfunc.parameter_groups(student, lr=recipe.lr, quantizer_lr=recipe.quantizer_lr) if learns else student.parameters()
    )
    if recipe.frozen:
        qfunc.freeze_batch_norm(student)
    optimizer = torch.optim.SGD(groups, lr=recipe.lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.steps)
    generator = torch.Generator().manual_seed(seed)
    order = torch.cat([torch.randperm(len(x), generator=generator) for _ in range(1 + recipe.steps * BATCH // len(x))])
    bar = tqdm(order.split(BATCH)[: recipe.steps], f"{recipe.name}, seed {seed}", leave=False, disable=not sys.stderr.isatty())
    for batch in bar:
        mirrored = torch.rand(len(batch), 1, 1, 1, generator=generator) < 0.5
        images = torch.where(mirrored, x[batch].flip(3), x[batch])
        with torch.no_grad():
            wanted = teacher(images).log_softmax(1)
        optimizer.zero_grad()
        F.kl_div(student(images).log_softmax(1), wanted, log_target=True, reduction="batchmean").backward()
        optimizer.step()
        schedule.step()
    return student.eval()


def row(recipe: Recipe, teacher: nn.Module, x: Tensor, test: Set, seed: int) -> dict[str, Any]:
    """Return the result of one seed: accuracy, and the number of classes that emulation and ONNX Runtime change."""
    start = time.process_time()
    student = trained(recipe, teacher, x, seed)
    found: dict[str, Any] = {"name": recipe.name, "seed": seed, "cpu_seconds": round(time.process_time() - start, 1)}
    simulated = classes(student, test[0])
    found["accuracy"] = accuracy(simulated, test[1])
    target = recipe.edit(recipe.target)
    if target.name.startswith("onnxruntime"):
        exact = classes(qfunc.emulate(target)(student), test[0])
        session = OnnxRuntimeRunner(threads=1).session(qfunc.deploy(target)(student).files["model.onnx"])
        found["emulated"] = accuracy(exact, test[1])
        found["unlike_runtime"] = int((exact != classes(lambda v: session.run([v])[0], test[0])).sum())
    return found


@functools.cache
def sets(data: Path) -> tuple[nn.Module, Tensor, Set]:
    """Return the float network, the training images, and the test images with labels."""
    teacher, (x, _), (inputs, labels) = loader(data)("cifar10", 20, n_calib=TRAINED)
    return teacher, x, (inputs[:TESTED], labels[:TESTED])


def cell(data: Path, name: str, seed: int | None) -> dict[str, Any]:
    """Run one seed of the named recipe on one thread.  Without a seed, run calibration alone."""
    torch.set_num_threads(1)
    teacher, x, test = sets(data)
    recipe = next(r for r in ROWS if r.name == name)
    if seed is not None:
        return row(recipe, teacher, x, test, seed)
    first = classes(calibrated(recipe.target, teacher, x, qfunc.FoldBatchNorm()), test[0])
    return {"name": name, "seed": None, "accuracy": accuracy(first, test[1])}


def table_of(data: Path, file: Path, full: bool, only: str, jobs: int) -> None:
    """Run the missing cells, `jobs` processes at a time, and print the table."""
    start = time.perf_counter()
    have = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    chosen = [r for r in ROWS if only in r.name and (full or not r.full)]
    done = {(h["name"], h["seed"]) for h in have}
    missing = sorted(((r.steps, r.name, seed) for r in chosen for seed in (0, 1, 2, None) if (r.name, seed) not in done),
                     key=lambda m: (m[2] is None, -m[0]))  # fmt: skip
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:  # longest first
        waiting = [pool.submit(cell, data, name, seed) for _, name, seed in missing]
        for done_now in tqdm(as_completed(waiting), "trainings", len(waiting)):
            have.append(done_now.result())
            with file.open("a") as out:
                out.write(json.dumps(have[-1]) + "\n")
    teacher, _, test = sets(data)
    real, rows = accuracy(classes(teacher, test[0]), test[1]), []
    for recipe in chosen:
        first = next(h["accuracy"] for h in have if (h["name"], h["seed"]) == (recipe.name, None))
        mine = [h for h in have if h["name"] == recipe.name and h["seed"] is not None]
        reached = [h["accuracy"] for h in mine]
        same = f"{sum(h['unlike_runtime'] for h in mine)} of {len(mine) * TESTED:,}" if "unlike_runtime" in mine[0] else ""
        seconds = statistics.mean(h["cpu_seconds"] for h in mine)
        rows.append([recipe.name, f"{real:.2f}", f"{first:.2f}", f"{statistics.mean(reached):.2f}",
                     f"{min(reached):.2f} to {max(reached):.2f}", "" if recipe.mqbench is None else f"{recipe.mqbench:.2f}",
                     f"{recipe.steps}", f"{seconds:.0f}", same])  # fmt: skip
    print(f"\ntop-1 in percent on {TESTED:,} test images, trained on {TRAINED:,}; {runnable(targets.onnxruntime).name}")
    print(table(HEAD, rows, 200))
    print(f"{(time.perf_counter() - start) / 60:.1f} minutes for {len(missing)} runs")


HEAD = ("recipe", "float", "min/max", "trained", "seeds", "MQBench", "steps", "CPU s", "emulated otherwise than run")
