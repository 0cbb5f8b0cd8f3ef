"""Cost of reconstruction: an iteration relative to a plain forward and backward pass, and the growth with depth.

    python benchmarks/reconstruction.py [--size 64] [--batch 32] [--runs 7] [--methods adaround brecq qdrop] [--depth 8]

The first table has the units of a ResNet-18 with random weights, on `targets.academic(4, 4)`.  An iteration is the median of
several iterations of `reconstruct`.  "Plain" is the float unit's forward pass and its backward pass to the weights, on as many
images.  Both run interleaved, unit by unit, in one thread.  Their sums over all units are compared (limit 1.5).  Images smaller
than 224 have relatively more elements to quantize per product.

The second table has the time of everything except the iterations, on a chain and on one of twice its depth (limit 2.3).  All
times are CPU seconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from attrs import evolve
from interleave import interleaved
from networks import resnet18
from torch import Tensor, nn
from tqdm import tqdm

import qfunc
from qfunc import targets
from qfunc.analysis.report_format import table
from qfunc.reconstruction import Method
from qfunc.reconstruction import run_graph as part
from qfunc.reconstruction.cache import Cache, Key
from qfunc.reconstruction.steps import Step

LIMIT, LINEAR = 1.5, 2.3
Optimise = Callable[..., Any]


def plain(step: Step, cache: Cache, batch: int) -> Callable[[], None]:
    """Return a function that runs the float unit forward on cached images, and backward to the weights."""
    inputs = [cache.part(Key("float", name), 0, batch) for name in step.inputs]
    weights = [t.detach().requires_grad_() for t in step.real.parameters() if t.ndim > 1]
    others = {n: t.detach() for n, t in step.real.named_parameters() if t.ndim <= 1}
    names = [n for n, t in step.real.named_parameters() if t.ndim > 1]
    given = {**others, **dict(zip(names, weights, strict=True))}

    def work() -> None:
        with torch.enable_grad():
            found = torch.func.functional_call(step.real, given, tuple(inputs))
            torch.autograd.grad(found, weights, [torch.ones_like(t) for t in found])

    return work


def by_unit(method: Method, model: Any, x: Tensor, runs: int) -> list[tuple[str, float, float]]:
    """Return (unit, seconds of an iteration, seconds of plain) per unit, measured in place of the optimisation."""
    found: list[tuple[str, float, float]] = []
    real: Optimise = part.optimise

    def timed(step: Step, rounded: Any, learning: Any, method: Method, cache: Cache, *rest: Any) -> Any:
        work, taken, each = plain(step, cache, method.batch), list[float](), list[float]()
        last = time.process_time()

        def between(i: int, loss: Tensor) -> None:
            nonlocal last
            each.append(time.process_time() - last)
            start = time.process_time()
            work()
            last = time.process_time()
            taken.append(last - start)

        result = real(step, rounded, learning, method, cache, rest[0], between)
        assert step.unit is not None
        found.append((step.unit.name, statistics.median(each[2:]), statistics.median(taken[2:])))
        return result

    part.optimise = timed
    try:
        qfunc.reconstruct(evolve(method, iterations=runs + 2), [x], progress=False)(model)
    finally:
        part.optimise = real
    return found


class Chain(nn.Sequential):
    """A chain of convolutions of one size."""

    def __init__(self, depth: int) -> None:
        super().__init__(*(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(depth)))


def growth(depth: int, runs: int) -> list[str]:
    """Return the seconds of a one-iteration reconstruction on a chain and on one of twice its depth, and their ratio."""
    x = torch.randn(256, 8, 16, 16)
    method, works = qfunc.adaround(iterations=1, batch=1), {}
    for n in (depth, 2 * depth):
        model = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.academic(8, 8))(Chain(n).eval()))
        works[str(n)] = lambda model=model: qfunc.reconstruct(method, list(x.split(32)), progress=False)(model)
    times = interleaved(works, runs, warm=1, clock=time.process_time)
    short, long = (statistics.median(times[name]) for name in works)
    return [str(depth), f"{short:.3f}", f"{long:.3f}", f"{long / short:.2f}"]


def main() -> None:
    """Print the two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--methods", nargs="+", default=["adaround", "brecq", "qdrop"])
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--units", action="store_true", help="print each unit, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(options.batch, 3, options.size, options.size)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.academic(4, 4))(resnet18()))
    rows = []
    for name in tqdm(options.methods, leave=False):
        each = by_unit(getattr(qfunc, name)(batch=options.batch), model, x, options.runs)
        ours, base = (sum(unit[i] for unit in each) for i in (1, 2))
        rows.append([name, str(len(each)), f"{ours:.3f}", f"{base:.3f}", f"{ours / base:.2f}"])
        if options.units:
            print(table((name, "an iteration, s", "plain, s", "ratio"),
                        [[unit, f"{a:.4f}", f"{b:.4f}", f"{a / b:.2f}"] for unit, a, b in each]))  # fmt: skip
    print(f"\nan iteration of each unit, ResNet-18, {options.batch} images of {options.size} x {options.size}; limit {LIMIT}")
    print(table(("method", "units", "iterations, s", "plain, s", "ratio"), rows))
    print(f"\neverything except the iterations, 256 images, a chain and one of twice its depth; limit {LINEAR}")
    print(table(("depth", "seconds", "of twice the depth", "ratio"), [growth(options.depth, options.runs)]))


if __name__ == "__main__":
    main()
