"""MobileNetV1 with per-tensor weight scales: accuracy after equalization, bias correction and reconstruction.

    python benchmarks/mobilenet.py --data DIR [--images 800] [--iterations 100] [--file FILE]

DIR contains `load.py` with `load("imagenet1k") -> (model, (inputs, labels) to calibrate, (inputs, labels) to test)`.  Weights
have 8 bits and are symmetric, per tensor or, in the rows named so, per channel.  Activations have 8 bits, with the minima and
maxima of 200 images.  A row is appended to FILE (JSON lines) and not run again.  "agree" is the share of images with the
float network's class.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fidelity import loader, predictions
from one_by_one import rows_of
from torch import Tensor, nn
from tqdm import tqdm

import qfunc
from qfunc import targets
from qfunc.analysis.report_format import table
from qfunc.specs import PerChannel, PerTensor, edit

HEAD = ("network", "images", "top-1", "agree", "seconds")
TENSOR, CHANNEL = (edit.weights(granularity=g)(targets.onnxruntime) for g in (PerTensor(), PerChannel()))


def _relu(model: nn.Module) -> nn.Module:
    return qfunc.corrections.replace_relu6()(model)


def _equal(model: nn.Module) -> nn.Module:
    return qfunc.equalize()(_relu(model))


def _absorbed(model: nn.Module) -> nn.Module:
    return qfunc.corrections.absorb_high_bias()(_equal(model))


def _kept(model: nn.Module) -> nn.Module:
    return qfunc.equalize(deviations=3.0)(model)


def _same(model: nn.Module) -> nn.Module:
    return model


Float = Callable[[nn.Module], nn.Module]


def rows(iterations: int) -> dict[str, tuple[Float, Any, str]]:
    """Map names to (changes of the float network, target or None, steps after calibration)."""
    rounded = f"reconstruct, {iterations}"
    return {
        "float": (_same, None, ""),
        "float, ReLU6 as ReLU": (_relu, None, ""),
        "float, equalized, clips kept": (_kept, None, ""),
        "nearest": (_same, TENSOR, ""),
        "bias correction": (_same, TENSOR, "batches"),
        "ReLU6 as ReLU, equalized": (_equal, TENSOR, ""),
        " + absorption": (_absorbed, TENSOR, ""),
        " + absorption, bias correction": (_absorbed, TENSOR, "batches"),
        "equalized, clips kept": (_kept, TENSOR, ""),
        " + bias correction": (_kept, TENSOR, "batches"),
        " + bias correction without data": (_kept, TENSOR, "norms"),
        f" + AdaRound, {iterations} iterations a layer": (_kept, TENSOR, rounded),
        "per channel, nearest": (_same, CHANNEL, ""),
        "per channel, bias correction": (_same, CHANNEL, "batches"),
    }


def made(model: nn.Module, row: tuple[Float, Any, str], x: Tensor, iterations: int) -> nn.Module:
    """Return the network of a row."""
    change, target, then = row
    given = change(model).eval()
    if target is None:
        return given
    batches = x.split(50)
    calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(given))
    if then == "batches":
        return qfunc.correct_bias(batches, progress=False)(calibrated)
    if then == "norms":
        return qfunc.correct_bias_analytic(given)(calibrated)
    if then:
        return qfunc.reconstruct(qfunc.adaround(iterations=iterations, rounding_lr=0.03), batches)(calibrated)
    return calibrated


def main() -> None:
    """Run the missing rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=800, help="of the 800 test images, evenly spread")
    parser.add_argument("--iterations", type=int, default=100, help="of AdaRound, per layer")
    parser.add_argument("--only", default="", help="rows whose names contain this word")
    parser.add_argument("--file", type=Path, default=Path("mobilenet.jsonl"))
    options = parser.parse_args()
    have, of_all = rows_of(options.file), rows(options.iterations)
    todo = {name: row for name, row in of_all.items() if options.only in name or name == "float"}
    key = {name: f"{name} ({options.images})" for name in todo}
    if any(k not in have for k in key.values()):
        model, (calib, _), (x, y) = loader(options.data)("imagenet1k")
        step = len(x) // options.images
        x, y = x[::step][: options.images], y[::step][: options.images]
        for name in tqdm([n for n in todo if key[n] not in have], "rows", disable=not sys.stderr.isatty()):
            start = time.monotonic()
            network = made(model, todo[name], calib, options.iterations)
            took = time.monotonic() - start
            found = predictions(network, x, 20, name)
            have[key[name]] = {
                "name": key[name], "images": len(x), "right": int((found == y).sum()), "found": found.tolist(), "seconds": took
            }  # fmt: skip
            with options.file.open("a") as out:
                out.write(json.dumps(have[key[name]]) + "\n")
    wanted = torch.tensor(have[key["float"]]["found"])
    cells = []
    for name in todo:
        row = have[key[name]]
        agree = (torch.tensor(row["found"]) == wanted).double().mean()
        cells.append([name, str(row["images"]), f"{100 * row['right'] / row['images']:.2f}", f"{100 * float(agree):.2f}",
                      f"{row['seconds']:.0f}"])  # fmt: skip
    print(table(HEAD, cells, 120))


if __name__ == "__main__":
    main()
