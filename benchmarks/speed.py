"""Cost of emulation and deployment, on a ResNet-18-shaped network.

    python benchmarks/speed.py [--runs 5]

Emulation is a ratio to the float forward pass, interleaved in one process.  The other tables have the seconds of capture,
quantize and deploy, and of deploy for every target, from one capture; and CPU milliseconds of a training step of a tiny
network, whose time is that of the Python code.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from artifacts import TARGETS
from networks import resnet18
from torch import Tensor, nn
from tqdm import tqdm

import qfunc
from qfunc import recipes, targets
from qfunc.analysis.report_format import table
from qfunc.errors import SpecError


def seconds(work: Callable[[], Any]) -> tuple[float, float]:
    """Return (wall, CPU) seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    with torch.inference_mode():
        work()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    """Print four tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    model, x, target = resnet18(), torch.randn(4, 3, 224, 224), targets.onnxruntime
    steps: dict[str, float] = {}
    captured, steps["capture"] = timed(lambda: qfunc.capture()(model))
    quantized, steps["quantize"] = timed(lambda: qfunc.quantize(target)(captured))
    calibrated, steps["calibrate, 4 images"] = timed(lambda: qfunc.calibrate([x], progress=False)(quantized))
    emulated, steps["emulate"] = timed(lambda: qfunc.emulate(target)(calibrated))
    _, steps["deploy, first"] = timed(lambda: qfunc.deploy(target)(calibrated))
    _, steps["deploy, again"] = timed(lambda: qfunc.deploy(target)(calibrated))
    print(table(("step", "wall, s"), [[k, f"{v:.2f}"] for k, v in steps.items()]))
    works = {"float": captured, "simulated": calibrated, "emulated": emulated}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for work in works.values():
        seconds(lambda work=work: work(x))  # type: ignore[misc]
    for _ in range(options.runs):
        for name, work in works.items():
            taken[name].append(seconds(lambda work=work: work(x)))  # type: ignore[misc]
    base = [statistics.median(t[i] for t in taken["float"]) for i in (0, 1)]
    rows = []
    for name, times in taken.items():
        wall, cpu = (statistics.median(t[i] for t in times) for i in (0, 1))
        rows.append([name, f"{wall:.3f}", f"{wall / base[0]:.2f}", f"{cpu / base[1]:.2f}"])
    print(f"\nforward of 4 images of 224x224, median of {options.runs}")
    print(table(("model", "wall, s", "wall ratio", "CPU ratio"), rows))
    print(f"\ndeploy of one captured model to each target, minimum of {options.runs}")
    print(table(("target", "wall, s", "CPU, s", "KiB"), deployed(captured, x, options.runs)))
    print(f"\ntraining step of ten linear layers of width 8, minimum of {20 * options.runs}")
    print(table(("model", "CPU, ms", "ratio"), steps(20 * options.runs)))


def steps(runs: int) -> list[list[str]]:
    """Return (model, minimum CPU milliseconds of a forward and a backward pass, ratio to float)."""
    x, target = torch.randn(4, 8), targets.tensorrt
    model = nn.Sequential(*(layer for _ in range(10) for layer in (nn.Linear(8, 8), nn.ReLU())))
    models: dict[str, nn.Module] = {"float": model}
    for name, chosen in (("fixed scales", target), ("LSQ", recipes.lsq()(target))):
        models[name] = qfunc.calibrate([x], progress=False)(qfunc.quantize(chosen)(model)).train()
    taken: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(runs):
        for name, trained in models.items():
            start = time.process_time()
            trained(x).sum().backward()
            taken[name].append(1000 * (time.process_time() - start))
    return [[name, f"{min(t):.2f}", f"{min(t) / min(taken['float']):.1f}"] for name, t in taken.items()]


def deployed(captured: Any, x: Tensor, runs: int) -> list[list[str]]:
    """Return (target, minimum wall seconds, minimum CPU seconds, size of its files)."""
    rows = []
    for target in tqdm(TARGETS, "deploy", leave=False, disable=not sys.stderr.isatty()):
        try:
            quantized = qfunc.quantize(target)(captured)
        except SpecError as e:  # the chip lacks an op
            rows.append([target.name, f"refused: {e.found}", "-", "-"])
            continue
        calibrated = qfunc.calibrate([x], progress=False)(quantized)
        taken = []
        for _ in range(runs):
            wall, cpu = time.perf_counter(), time.process_time()
            artifact = qfunc.deploy(target)(calibrated)
            taken.append((time.perf_counter() - wall, time.process_time() - cpu))
        size = sum(map(len, artifact.files.values()))
        rows.append([target.name, *(f"{min(t[i] for t in taken):.2f}" for i in (0, 1)), f"{size / 1024:.0f}"])
    return rows


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return (result, wall seconds)."""
    start = time.perf_counter()
    return work(), time.perf_counter() - start


if __name__ == "__main__":
    main()
