"""Compare simulation and emulation with the runtimes, on trained networks and real images.

    python benchmarks/fidelity.py --data DIR [--quick] [--only WORD]

DIR contains `load.py` with `load(name, ...) -> (model, (inputs, labels) to calibrate, (inputs, labels) to test)`.
The exit status is 1 if

- emulation and ONNX Runtime at full optimisation differ,
- ONNX Runtime partitions a unit differently than predicted,
- fewer integer tensors were compared than predicted, or
- a file of any target cannot be read back, or has other ranges than the model (see artifacts.py).

The networks are quantized and calibrated by the minima and maxima of 200 images.  Their biases are corrected on the same
images; the accuracy loss without that correction is also printed.  On a CPU whose int8 kernels saturate (x86-64 without
VNNI), weights have 7 bits, and the name of the target shows this.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import artifacts
import torch
from artifacts import runnable
from torch import Tensor, fx
from tqdm import tqdm

import qfunc
from qfunc import targets
from qfunc.analysis.report_format import table
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from qfunc.targets.runtimes import OnnxRuntimeRunner

NETWORKS = {
    "LeNet, MNIST": ("mnist",),
    "ResNet-20, CIFAR-10": ("cifar10", 20),
    "ResNet-32, CIFAR-10": ("cifar10", 32),
    "MobileNetV1 0.75, ImageNet": ("imagenet1k",),
}


def loader(folder: Path) -> Any:
    """Return the `load` function of the data folder."""
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location("load", folder / "load.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load


def predictions(model: Any, x: Tensor, batch: int = 100, name: str = "") -> Tensor:
    """Return the predicted class of each input."""
    parts = [x[i : i + batch] for i in range(0, len(x), batch)]
    with torch.inference_mode():
        found = [torch.as_tensor(model(p)).argmax(1) for p in tqdm(parts, name, leave=False, disable=not sys.stderr.isatty())]
    return torch.cat(found)


def paired(a: Tensor, b: Tensor) -> str:
    """Return the difference of two accuracies on the same images in points, with its 95 % interval (normal, paired)."""
    d = a.double() - b.double()
    half = 1.96 * float(d.std()) / math.sqrt(len(d))
    return f"{100 * float(d.mean()):+.2f} +- {100 * half:.2f}"


def calibrated(model: Any, target: Any, x: Tensor) -> fx.GraphModule:
    """Return the model quantized for a target and calibrated in batches of 50."""
    result = qfunc.calibrate(x.split(50))(qfunc.quantize(target)(model))
    assert isinstance(result, fx.GraphModule)
    return result


def on_onnxruntime(name: str, model: Any, calib: Tensor, test: Any, count: int) -> tuple[list[str], list[str], list[str]]:
    """Return (row of accuracies, row of comparisons, complaints) for targets.onnxruntime."""
    target = runnable(targets.onnxruntime)
    uncorrected = calibrated(model, target, calib)
    quantized = qfunc.correct_bias(calib.split(50))(uncorrected)
    emulated = qfunc.emulate(target)(quantized)
    session = OnnxRuntimeRunner().session(qfunc.deploy(target)(quantized).files["model.onnx"])
    x, y = test[0][:count], test[1][:count]
    right = {
        "float": predictions(model, x, name="float") == y,
        "simulated": predictions(quantized, x, name="simulated") == y,
        "emulated": predictions(emulated, x, name="emulated") == y,
        "runtime": predictions(lambda p: session.run([p])[0], x, name="runtime") == y,
    }
    accuracy = [f"{100 * float(r.double().mean()):.2f}" for r in right.values()]
    whole = [
        predictions(m, test[0], name=n) == test[1]
        for m, n in ((model, "float"), (quantized, "simulated"), (uncorrected, "uncorrected"))
    ]
    differences = [paired(whole[0], w) for w in whole[1:]]
    size = 20 if x[0].numel() > 3 * 64 * 64 else 100
    report = qfunc.verify(target)(quantized, tqdm(x.split(size), "verify", leave=False, disable=not sys.stderr.isatty()))
    predicted = {u.tensor for u in Partition(QuantizedModel(quantized), target).units if u.integer}
    compared = {r.name for r in report.of("codes")}
    complaints = [f"{name}: {d}" for d in report.disagreements]
    complaints += [f"{name}: {report.verdict}"] if report.mismatches else []
    complaints += [f"{name}: {len(predicted - compared)} predicted tensors were not compared"] if predicted - compared else []
    figures = [
        name,
        str(len(x)),
        f"{len(predicted)}",
        f"{report.tensors}",
        f"{report.elements:,}",
        f"{report.mismatches}",
        str(len(report.float_units)),
    ]
    return [name, str(len(x)), *accuracy, *differences, f"{len(test[0]):,}"], figures, complaints


def main() -> int:
    """Print four tables.  Return 0 if everything agrees."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--small", type=int, default=1000, help="images up to 64x64 pixels")
    parser.add_argument("--large", type=int, default=64, help="larger images")
    parser.add_argument("--quick", action="store_true", help="200 and 8 images; calibrate by 50")
    parser.add_argument("--only", default="", help="networks whose names contain this word")
    options = parser.parse_args()
    small, large, calibrating = (200, 8, 50) if options.quick else (options.small, options.large, 200)
    load = loader(options.data)
    rows, figures, complaints, ran, files = [], [], [], [], []
    names = [name for name in NETWORKS if options.only in name]
    for name in tqdm(names, "networks", disable=not sys.stderr.isatty()):
        model, (calib, _), test = load(*NETWORKS[name])
        big = test[0][0].numel() > 3 * 64 * 64
        count = large if big else small
        if options.quick:
            test = tuple(t[:1000] for t in test)
        row, figure, complaint = on_onnxruntime(name, model, calib[:calibrating], test, count)
        rows.append(row)
        figures.append(figure)
        complaints += complaint
        for found in artifacts.rows(model, calib[:calibrating], test[0][:count], test[1][:count], 20 if big else 100):
            ran += [[name, str(count), *found.figures]] if found.figures else []
            files += [[name, *found.files]] if found.files else []
            complaints += [f"{name}, {c}" for c in found.complaints]
    print(f"{runnable(targets.onnxruntime).name}: top-1 in percent on the same images")
    print(
        "float - simulated: paired difference in points over the whole test set, 95 % interval; with and without correct_bias"
    )
    print(
        table(
            (
                "network",
                "images",
                "float",
                "simulated",
                "emulated",
                "ONNX Runtime",
                "float - simulated",
                "without correct_bias",
                "images",
            ),
            rows,
        )
    )
    print("\nemulation against ONNX Runtime at full optimisation, every integer tensor and the output")
    print(table(("network", "images", "integer units", "tensors compared", "elements", "mismatches", "float units"), figures))
    print("\nevery target's artifact, compared with the emulation (or with the simulation, without one)")
    print(table(("network", "images", *artifacts.HEAD), ran, 250))
    print("\nfiles, and the number of quantized activations that each contains with the model's own ranges")
    print(table(("network", *artifacts.FILES), files, 300))
    print("\n".join(complaints))
    print(f"{len(names)} networks, {sum(int(f[5]) for f in figures)} mismatches")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
