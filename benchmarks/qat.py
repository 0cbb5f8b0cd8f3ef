"""Cost of training: a step relative to the float step, bytes saved for the backward pass, weights in evaluation.

    python benchmarks/qat.py [--runs 7] [--size 224] [--compiled] [--targets tensorrt onnxruntime] [--threads N] [--clock cpu]
    python benchmarks/qat.py --data DIR [--full] [--file FILE] [--only WORD] [--jobs N]

The first command prints ratios for a ResNet-18, batch 8, with LSQ and BatchNorms by batch statistics, interleaved in one
process, with and without `qfunc.recompute_quantized`.  With --compiled, all networks use torch.compile, whose backward pass
always recomputes.  Limits: eager 1.45 of the float step and 1.6 of its bytes, compiled 1.2 and 1.25 of the compiled float
ones.  The second command trains a network of DIR: see qat_accuracy.py.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import qat_accuracy
import torch
import torch.nn.functional as F
from interleave import Times, interleaved, ms, ratio
from networks import resnet18
from torch import Tensor, nn

import qfunc
from qfunc import recipes, targets
from qfunc.analysis.report_format import table

BATCH, LIMITS = 8, {False: (1.45, 1.6), True: (1.2, 1.25)}


Context = Callable[[], AbstractContextManager[Any]]


def step(model: nn.Module, run: Callable[[Tensor], Tensor], context: Context, x: Tensor, y: Tensor) -> Callable[[], None]:
    """Return a function that runs one training step: forward, backward, optimizer."""
    learned = any(True for m in model.modules() if hasattr(m, "site"))
    groups: Any = qfunc.parameter_groups(model, lr=1e-4) if learned else model.parameters()
    optimizer = torch.optim.SGD(groups, lr=1e-4, momentum=0.9)

    def work() -> None:
        optimizer.zero_grad()
        with context():
            loss = F.cross_entropy(run(x), y)
        loss.backward()
        optimizer.step()

    return work


def saved(run: Callable[[Tensor], Tensor], context: Context, x: Tensor, y: Tensor) -> int:
    """Return the bytes that a forward pass keeps for its backward pass, counting each storage once."""

    def alive() -> dict[int, int]:
        gc.collect()
        found = {}
        for tensor in gc.get_objects():
            if issubclass(type(tensor), Tensor):
                with suppress(RuntimeError):  # traced tensors have no storage
                    found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return found

    before = sum(alive().values())
    # Identity hooks make the tensors that autograd saves visible to Python.  The hooks of the context do the same, if any.
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t), context():
        loss = F.cross_entropy(run(x), y)
    kept = sum(alive().values()) - before
    loss.backward()
    return kept


def evaluation(model: nn.Module, x: Tensor, runs: int, clock: Callable[[], float]) -> Times:
    """Time forward passes without gradients: with cached weights, and with weights quantized each time."""
    weights = [m for m in model.modules() if hasattr(m, "kept")]

    def again() -> None:
        for module in weights:
            module.cache.clear()
        model(x)

    with torch.no_grad():
        return interleaved({"kept": lambda: model(x), "again": again}, runs, clock=clock)


def costs(names: list[str], size: int, runs: int, compiled: bool, clock: Callable[[], float]) -> None:
    """Print the two tables."""
    torch.manual_seed(0)
    x, y = torch.randn(BATCH, 3, size, size), torch.arange(BATCH)
    models: dict[str, nn.Module] = {"float": resnet18().train()}
    for name in names:
        target = recipes.lsq()(getattr(targets, name))
        quantized = qfunc.quantize(target, batch_norm=qfunc.TrainBatchNorm())(resnet18())
        models[name] = qfunc.calibrate([x], progress=False)(quantized).train()
    runners: dict[str, Any] = {n: torch.compile(m, fullgraph=True) if compiled else m for n, m in models.items()}
    ways: dict[str, tuple[str, Context]] = {n: (n, nullcontext) for n in models}
    if not compiled:
        ways |= {f"{n}, recomputed": (n, qfunc.recompute_quantized) for n in names}
    works = {way: step(models[n], runners[n], context, x, y) for way, (n, context) in ways.items()}
    times = interleaved(works, runs, clock=clock)
    memory = {way: saved(runners[n], context, x, y) for way, (n, context) in ways.items()}
    most = LIMITS[compiled]
    words = "compiled" if compiled else "eager"
    print(f"\na step of training, ResNet-18, {BATCH} images of {size} x {size}, {words}")
    print(f"limits: {most[0]} of the time, {most[1]} of the bytes of the float step")
    rows = [[n, ms(times, n), ratio(times, n, "float"), f"{memory[n] / 2**20:.0f}", f"{memory[n] / memory['float']:.2f}"]
            for n in ways]  # fmt: skip
    print(table(("model", "ms", "to float", "saved for backward, MiB", "to float"), rows))
    if not compiled:
        print("\na forward pass in evaluation: weights quantized once, or each time")
        each = {n: evaluation(models[n].eval(), x, runs, clock) for n in names}
        print(table(("model", "once, ms", "each time, ms", "once to each time"),
                    [[n, ms(t, "kept"), ms(t, "again"), ratio(t, "kept", "again")] for n, t in each.items()]))  # fmt: skip


def main() -> None:
    """Print the costs or, with --data, the accuracies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--compiled", action="store_true", help="use torch.compile for both networks")
    parser.add_argument("--targets", nargs="+", default=["tensorrt", "onnxruntime"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--data", type=Path, help="a folder with a trained network and its images")
    parser.add_argument("--full", action="store_true", help="every recipe")
    parser.add_argument("--file", type=Path, default=Path("qat.jsonl"), help="rows are appended to this file and not run again")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parallel trainings, with one thread each")
    parser.add_argument("--only", default="", help="rows whose names contain this word")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.data is not None:
        qat_accuracy.table_of(options.data, options.file, options.full, options.only, options.jobs)
    else:
        clock = time.process_time if options.clock == "cpu" else time.perf_counter
        costs(options.targets, options.size, options.runs, options.compiled, clock)


if __name__ == "__main__":
    main()
