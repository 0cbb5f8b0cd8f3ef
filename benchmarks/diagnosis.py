"""Diagnose a trained MobileNetV1 whose weights have one scale per tensor: the cause, the plans, and what each recovers.

    python benchmarks/diagnosis.py --data DIR [--images 200] [--page diagnosis.html]

DIR contains `load.py` with `load("imagenet1k") -> (model, (inputs, labels) to calibrate, (inputs, labels) to test)`.  Each
plan is quantized, calibrated on 50 images, evaluated on the test images, deployed, and measured in ONNX Runtime with one
thread.  The exit status is 1 if the first cause is not the unlike channels of the weights, or no plan on integers recovers
90 % of the loss.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from fidelity import loader
from torch import Tensor

import qfunc
from qfunc import targets
from qfunc.diagnosis import RunTime
from qfunc.specs import PerTensor, edit
from qfunc.targets.runtimes import OnnxRuntimeRunner

CHIP = edit.weights(granularity=PerTensor())(targets.onnxruntime)


def top1(outputs: list[Tensor], batch: Any) -> Tensor:
    """Return whether the class of each image is right."""
    return outputs[0].argmax(1) == batch[1]


def main() -> int:
    """Print the report and the plans that budgets choose."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=200, help="of the 800 test images, evenly spread")
    parser.add_argument("--page", type=Path, help="write the report as a page")
    options = parser.parse_args()
    model, (calib, _), (x, y) = loader(options.data)("imagenet1k")
    step = len(x) // options.images
    x, y = x[::step][: options.images], y[::step][: options.images]
    batches = list(zip(x.split(25), y.split(25), strict=True))
    latency, start = RunTime(OnnxRuntimeRunner(threads=1), runs=10), time.monotonic()
    report = qfunc.diagnose(CHIP, batches, metric=top1, calibration=calib[:50].split(25), latency=latency)(model)
    print(f"{report}\n\n{time.monotonic() - start:.0f} s")
    if options.page is not None:
        report.save(options.page)
    chosen, slower = report.choose(), report.choose(latency=1.1 * (report.base.latency or 0.0))
    print(f"90 % of the loss: {chosen.plan}\n1.1 times the latency, the most accurate: {slower.plan}")
    return int(report.causes[0].kind != "channels of weights" or chosen.integer < 1.0 or chosen.recovered < 0.9)


if __name__ == "__main__":
    sys.exit(main())
