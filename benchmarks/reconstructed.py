"""Compare the emulation of a reconstructed ResNet-20 with ONNX Runtime, and with packed 4-bit storage.

    python benchmarks/reconstructed.py --data DIR [--iterations 200] [--images 1000]

DIR contains `load.py` with
`load("cifar10", 20, n_calib=N) -> (model, (inputs, labels) to calibrate, (inputs, labels) to test)`.
For `targets.onnxruntime` with weights of 8, 4 and 2 bits, QDrop runs on 1,000 images.  Every tensor of codes in the runtime is
compared with the emulation, and the output's accuracy is printed.  The 4-bit model is then compared with its weights stored as
INT4.  The runtime has no kernels for these and computes in float, so its outputs are compared in steps of the output's scale.

The exit status is 1 if codes differ where the weights are bytes.  On x86-64 without VNNI, weights have 7 bits instead of 8, and
the name of the target shows this.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from artifacts import runnable
from fidelity import loader, predictions
from torch import Tensor, fx
from tqdm import tqdm

import qfunc
from qfunc import lowering, targets
from qfunc.analysis.report_format import table
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from qfunc.specs import Target, edit
from qfunc.targets.runtimes import OnnxRuntimeRunner

HEAD = ("target", "weights", "images", "float units", "codes", "differ", "outputs", "differ", "most LSB", "emulated", "runtime")


def reconstructed(model: Any, target: Target, batches: list[Tensor], iterations: int) -> fx.GraphModule:
    """Return the model for the target after QDrop."""
    calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(model))
    result = qfunc.reconstruct(qfunc.qdrop(iterations=iterations, rounding_lr=0.03), batches)(calibrated)
    assert isinstance(result, fx.GraphModule)
    return result


def row(model: fx.GraphModule, target: Target, stored: str, x: Tensor, y: Tensor) -> tuple[list[str], int]:
    """Return the row of a model, and the number of codes of integer units that differ."""
    report = qfunc.verify(target)(model, tqdm(x.split(100), "verify", leave=False, disable=not sys.stderr.isatty()))
    session = OnnxRuntimeRunner().session(qfunc.deploy(target)(model).files["model.onnx"])
    predicted = {u.tensor for u in Partition(QuantizedModel(model), target).units if u.integer}
    of_integers = [r for r in report.of("codes") if r.name in predicted]
    outputs = report.of("output")
    right = [
        100 * float((predictions(m, x, name=name) == y).double().mean())
        for name, m in (("emulated", qfunc.emulate(target)(model)), ("runtime", lambda p: session.run([p])[0]))
    ]
    wrong = sum(r.mismatches for r in of_integers)
    figures = [
        target.name, stored, str(len(x)), str(len(report.float_units)), f"{sum(r.elements for r in of_integers):,}", str(wrong),
        f"{sum(r.elements for r in outputs):,}", f"{sum(r.mismatches for r in outputs):,}",
        f"{max(r.largest_lsb for r in outputs):.0f}",
        *(f"{r:.2f}" for r in right),
    ]  # fmt: skip
    return figures, wrong


def main() -> int:
    """Print the table.  Return 1 if codes differ where the weights are bytes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder with a trained network and its images")
    parser.add_argument("--iterations", type=int, default=200, help="per unit")
    parser.add_argument("--images", type=int, default=1000, help="test images compared")
    options = parser.parse_args()
    model, (calib, _), (x, y) = loader(options.data)("cifar10", 20, n_calib=1000)
    x, y, batches = x[: options.images], y[: options.images], list(calib.split(100))
    rows, wrong = [], 0
    four = edit.weights(bits=4)(targets.onnxruntime)
    for target, stored in (
        (runnable(targets.onnxruntime), "8 bits, bytes"),
        (four, "4 bits, bytes"),
        (edit.deploy(lowering.PackInt4())(four), "4 bits, INT4"),
        (edit.weights(bits=2)(targets.onnxruntime), "2 bits, bytes"),
    ):
        figures, differ = row(reconstructed(model, target, batches, options.iterations), target, stored, x, y)
        rows.append(figures)
        wrong += differ if stored.endswith("bytes") else 0
    print(table(HEAD, rows, 250))
    return 1 if wrong else 0


if __name__ == "__main__":
    torch.manual_seed(0)
    sys.exit(main())
