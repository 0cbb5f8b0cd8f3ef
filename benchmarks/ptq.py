"""Accuracy of a trained CIFAR ResNet-20 after post-training quantization: rounded to nearest, and reconstructed.

    python benchmarks/ptq.py --data DIR [--resume FILE] [--only WORD] [--bits W4A4 ...] [--seeds 2] [--jobs N] [--full]

DIR contains `load.py` with
`load("cifar10", 20, n_calib=N) -> (model, (inputs, labels) to calibrate, (inputs, labels) to test)`.
Calibration and reconstruction use 1,000 training images; accuracy uses the first 5,000 test images.  `targets.academic` has
symmetric per-channel weights, affine per-tensor activations, and 8 bits in the first and last layer.

A cell (a row at given bits with one seed) is a process with one thread; `--jobs` of them run at a time.  Each finished cell is
appended to FILE and not run again.  --full adds the papers' settings of 20,000 iterations per unit.  --bits W2A2 uses two bits
for weights and activations.  ptq_rows.py defines the rows.  "KL" is the divergence of the class probabilities from the float
network's, on the images used for reconstruction and on the test images.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from attrs import evolve, frozen
from fidelity import loader
from ptq_rows import EACH, NEAREST, PAPERS, SAME, Row
from torch import Tensor, nn
from tqdm import tqdm

import qfunc
from qfunc import targets
from qfunc.analysis.report_format import table

CALIBRATED, TESTED, BATCH = 1_000, 5_000, 100
FLOAT = 87.64
GOALS = {"W4A4": FLOAT - 0.7, "W2A4": 82.0}
FASTER = 5


@frozen
class Cell:
    """A row at given bits, with a seed."""

    row: Row
    bits: str
    seed: int

    def key(self) -> dict[str, Any]:
        """Return the cell's key in the file."""
        method = "" if self.row.method is None else repr(evolve(self.row.method, seed=self.seed))
        return {"row": self.row.name, "bits": self.bits, "seed": self.seed, "method": method}

    def cost(self) -> int:
        """Return the number of iterations, plus a constant for the calibration."""
        return 500 + (0 if self.row.method is None else self.row.method.iterations * self.row.units())


@cache
def given(data: Path) -> tuple[nn.Module, Tensor, tuple[Tensor, Tensor]]:
    """Return the network, the calibration images, and the test images with labels."""
    model, (x, _), (inputs, labels) = loader(data)("cifar10", 20, n_calib=CALIBRATED)
    return model, x, (inputs[:TESTED], labels[:TESTED])


def accuracy(model: Any, test: tuple[Tensor, Tensor]) -> float:
    """Return the accuracy in percent."""
    with torch.inference_mode():
        right = [model(x).argmax(1) == y for x, y in zip(test[0].split(BATCH), test[1].split(BATCH), strict=True)]
    return 100 * float(torch.cat(right).double().mean())


def divergence(model: Any, real: nn.Module, images: Tensor) -> float:
    """Return the mean of KL(float || quantized) of the probabilities."""
    with torch.inference_mode():
        each = [F.kl_div(model(x).log_softmax(1), real(x).log_softmax(1), log_target=True, reduction="sum")
                for x in images.split(BATCH)]  # fmt: skip
    return float(torch.stack(each).sum()) / len(images)


def measured(cell: Cell, data: Path) -> dict[str, Any]:
    """Return a cell's accuracy and the CPU seconds of calibration and reconstruction."""
    torch.set_num_threads(1)
    model, x, test = given(data)
    weights, activations = (int(n) for n in cell.bits[1:].split("A"))
    batches, start, wall = list(x.split(BATCH)), time.process_time(), time.perf_counter()
    target = cell.row.target(targets.academic(weights, activations))
    quantized = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(model))
    calibration, method = time.process_time() - start, cell.row.method
    if method is not None:
        quantized = qfunc.reconstruct(evolve(method, seed=cell.seed), batches, progress=False)(quantized)
    seconds, waited = time.process_time() - start, time.perf_counter() - wall
    return {**cell.key(), "accuracy": accuracy(quantized, test), "seconds": round(seconds, 1), "wall": round(waited, 1),
            "calibration": round(calibration, 1), "seen": round(divergence(quantized, model, x), 4),
            "unseen": round(divergence(quantized, model, test[0]), 4), "torch": torch.__version__}  # fmt: skip


def cells(rows: Sequence[Row], bits: Sequence[str], seeds: int) -> list[Cell]:
    """Return all cells.  Rounding to nearest has one seed."""
    return [Cell(row, b, seed) for row in rows for b in row.bits if b in bits for seed in range(seeds if row.method else 1)]


def results(todo: Sequence[Cell], data: Path, jobs: int) -> Iterator[dict[str, Any]]:
    """Yield the result of each cell as it finishes.  The longest cells start first."""
    ordered = sorted(todo, key=lambda c: -c.cost())
    bar = tqdm(total=sum(c.cost() for c in todo), unit="it", disable=not sys.stderr.isatty())
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool, bar:
        running = {pool.submit(measured, cell, data): cell for cell in ordered}
        try:
            for done in as_completed(running):
                found = done.result()
                bar.set_description(f"{found['row']}, {found['bits']}: {found['accuracy']:.2f}", refresh=False)
                bar.update(running[done].cost())
                yield found
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def line(row: Row, bits: str, found: Sequence[dict[str, Any]]) -> list[str]:
    """Return a row of the table: mean over seeds, extremes, and MQBench's result."""
    reached, seconds = [f["accuracy"] for f in found], statistics.mean(f["seconds"] for f in found)
    mean, (theirs, took) = statistics.mean(reached), row.mqbench.get(bits, (None, None))
    goal = GOALS.get(bits) if row.method is not None else None
    faster = f"{took / seconds:.1f}" if took is not None else ""
    return [
        row.group, row.name, bits, f"{mean:.2f}",
        f"{min(reached):.2f} to {max(reached):.2f}" if len(reached) > 1 else "",
        *(f"{statistics.mean(f[k] for f in found):.3f}" if all(k in f for f in found) else "" for k in ("seen", "unseen")),
        "" if row.method is None else f"{row.method.iterations:,} x {row.units()}",
        f"{seconds:.0f}", "" if theirs is None else f"{theirs:.2f}", "" if took is None else f"{took:.0f}",
        faster + (" (under 5)" if faster and row.method and took / seconds < FASTER else ""),
        "worse" if theirs is not None and mean < theirs else "" if theirs is None else "no worse",
        "" if goal is None else f"{'reached' if mean >= goal else 'missed'} ({goal:.2f})",
    ]  # fmt: skip


HEAD = ("group", "row", "bits", "top-1", "seeds", "KL", "unseen", "iterations x units", "CPU s", "MQBench", "its s",
        "times faster", "than MQBench", "goal")  # fmt: skip


def main() -> None:
    """Run the missing cells and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder with a trained network and its images")
    parser.add_argument("--resume", type=Path, default=Path("ptq.jsonl"), help="finished cells, which are not run again")
    parser.add_argument("--only", default="", help="rows whose names contain this word")
    parser.add_argument("--bits", nargs="+", default=["W8A8", "W4A8", "W4A4", "W3A3", "W2A4"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--full", action="store_true", help="the papers' settings, too")
    options = parser.parse_args()
    rows = [r for r in (*NEAREST, *EACH, *SAME, *(PAPERS if options.full else ())) if options.only in r.name]
    wanted, file = cells(rows, options.bits, options.seeds), options.resume
    have = [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []
    todo = [cell for cell in wanted if not any(cell.key().items() <= h.items() for h in have)]
    start = time.perf_counter()
    for found in results(todo, options.data, options.jobs) if todo else ():
        have.append(found)
        with file.open("a") as out:
            out.write(json.dumps(found) + "\n")
        print(f"{found['row']}, {found['bits']}, seed {found['seed']}: {found['accuracy']:.2f} in {found['seconds']:.0f} s")
    each = [(row, b, [h for c in wanted if (c.row, c.bits) == (row, b) for h in have if c.key().items() <= h.items()])
            for row in rows for b in row.bits if b in options.bits]  # fmt: skip
    model, _, test = given(options.data)
    print(f"\ntop-1 in percent on {TESTED:,} test images, float {accuracy(model, test):.2f}; {CALIBRATED:,} calibrate")
    print(f"{len(todo)} cells in {(time.perf_counter() - start) / 60:.0f} minutes, {options.jobs} at a time, a thread each")
    print(table(HEAD, [line(row, b, found) for row, b, found in each if found], 220))


if __name__ == "__main__":
    main()
