"""qfunc on a GPU: what it computes there against the CPU, and what each step costs there against the float network.

    python benchmarks/gpu.py [--device cuda] [--runs 10] [--only laws training ...]

The laws count elements that differ from the CPU's: qparams and rounded values, qparams of each estimator, and emulations.  The
tables have ratios of medians of interleaved runs in one process, on a ResNet-18-shaped network with images of 224 x 224:
calibration to the float loop, simulation to the float forward pass and QAT to the float training step, eager and compiled;
emulation to the float forward pass; an iteration of reconstruction to a forward and backward pass of its float unit; and the
estimators' updates to `torch.aminmax`.  Without a GPU all of it runs on the CPU, smaller, in CPU seconds, and the first line
says so.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from interleave import Times, interleaved, ms, ratio
from networks import resnet18
from torch import Tensor, nn

import qfunc
from qfunc import recipes, targets
from qfunc.analysis.report_format import table
from qfunc.errors import QfuncError
from qfunc.reconstruction import Method
from qfunc.specs import Int, Scheme, ZeroPoint

TARGET = targets.onnxruntime


class Bench:
    """A device, the sizes that it can take, and a clock that waits for it."""

    def __init__(self, device: str, runs: int) -> None:
        self.device, self.runs, self.gpu = device, runs, device != "cpu"
        self.batch, self.size = (32, 224) if self.gpu else (2, 96)

    def images(self, count: int = 0, seed: int = 0) -> Tensor:
        """Return random images on the device."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(count or self.batch, 3, self.size, self.size, generator=generator).to(self.device)

    def network(self) -> nn.Module:
        """Return the network on the device, in evaluation mode."""
        torch.manual_seed(0)
        return resnet18().eval().to(self.device)

    def clock(self) -> float:
        """Return the seconds after all work of the device is done; without a GPU those that this process computed."""
        if not self.gpu:
            return time.process_time()  # does not depend on what else the machine does
        torch.accelerator.synchronize()
        return time.perf_counter()

    def timed(self, works: dict[str, Callable[[], Any]]) -> Times:
        """Return the interleaved times of functions."""
        return interleaved(works, self.runs, warm=3, clock=self.clock)

    def show(self, title: str, times: Times, base: str) -> None:
        """Print a table of times, and of ratios to `base`."""
        print(f"\n{title}")
        print(table(("", "ms", f"to {base}"), [[n, ms(times, n), ratio(times, n, base)] for n in times]), flush=True)


def laws(bench: Bench) -> None:
    """Print the elements that differ between the device and the CPU."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.devices.laws import laws as all_laws

    rows, start = [], time.perf_counter()
    for name, law in all_laws():
        try:
            compared, wrong = law(bench.device)
            rows.append([name, f"{compared:,}", f"{wrong:,}"])
        except QfuncError as e:  # such as a package of a runtime that is not installed
            rows.append([name, "-", str(e)[:80]])
    print(f"\n{bench.device} against the CPU, {time.perf_counter() - start:.0f} s")
    print(table(("law", "elements", "differ"), rows), flush=True)


def calibration(bench: Bench) -> None:
    """Print the cost of calibration."""
    model, batches = bench.network(), [bench.images(seed=i) for i in range(4)]
    quantized = qfunc.quantize(TARGET)(model)

    def plain() -> None:
        with torch.no_grad():
            for x in batches:
                model(x)

    works = {"float loop": plain, "calibrate": lambda: qfunc.calibrate(batches, progress=False)(quantized)}
    bench.show(f"calibration, 4 batches of {bench.batch}", bench.timed(works), "float loop")


def _calibrated(bench: Bench, training: bool = False) -> Any:
    target = recipes.lsq()(TARGET) if training else TARGET
    keep = {"batch_norm": qfunc.TrainBatchNorm()} if training else {}
    quantized = qfunc.quantize(target, **keep)(bench.network())
    return qfunc.calibrate([bench.images()], progress=False)(quantized)


def forward(bench: Bench) -> None:
    """Print the cost of the simulation, eager and compiled."""
    models, x = {"float": bench.network(), "simulated": _calibrated(bench)}, bench.images()
    for compiled in (False, True):
        run = {n: torch.compile(m) if compiled else m for n, m in models.items()}
        with torch.no_grad():
            times = bench.timed({n: lambda m=m: m(x) for n, m in run.items()})
        bench.show(f"forward pass of {bench.batch}, {'compiled' if compiled else 'eager'}", times, "float")


def training(bench: Bench) -> None:
    """Print the cost of a step of QAT, eager and compiled (limit 1.15)."""
    x, y = bench.images(), torch.arange(bench.batch, device=bench.device)
    models = {"float": bench.network().train(), "QAT": _calibrated(bench, training=True).train()}
    for compiled in (False, True):
        works, firsts = {}, []
        for name, model in models.items():
            groups: Any = model.parameters() if name == "float" else qfunc.parameter_groups(model, lr=1e-4)
            works[name] = _step(torch.compile(model) if compiled else model, torch.optim.SGD(groups, lr=1e-4), x, y)
            start = bench.clock()
            works[name]()
            firsts.append(f"{name} {bench.clock() - start:.1f} s")
        title = f"training step of {bench.batch}, {'compiled' if compiled else 'eager'}; first step: {', '.join(firsts)}"
        bench.show(title, bench.timed(works), "float")


def _step(run: Any, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Callable[[], None]:
    def work() -> None:
        optimizer.zero_grad()
        F.cross_entropy(run(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return work


def emulation(bench: Bench) -> None:
    """Print the cost of emulation (limit 2)."""
    calibrated, model, x = _calibrated(bench), bench.network(), bench.images()
    exact = qfunc.emulate(TARGET)(calibrated)
    with torch.no_grad():
        times = bench.timed({"float": lambda: model(x), "emulated": lambda: exact(x)})
    bench.show(f"emulation of {bench.batch}", times, "float")


def reconstruction(bench: Bench) -> None:
    """Print the cost of an iteration, by differences of two lengths, to a forward and backward pass (limit 1.3).

    All that a call does once has no share in a difference, if it takes the same time in both calls.  The title has the time
    of the short call and the range of the differences: where this is wide, the figure is not to be trusted.
    """
    model, x = bench.network(), bench.images(64 if bench.gpu else 8)
    quantized = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.academic(4, 8))(model))
    few, many = (50, 550) if bench.gpu else (20, 120)
    batch = bench.batch

    def run(iterations: int) -> None:
        method = Method(iterations=iterations, batch=batch)
        qfunc.reconstruct(method, [x], progress=False)(quantized)

    def plain() -> None:
        F.mse_loss(model(x[:batch]), torch.zeros((), device=bench.device)).backward()  # type: ignore[no-untyped-call]

    run(few)  # what is loaded or compiled once
    plains, shorts, each = list[float](), list[float](), list[float]()
    for _ in range(3):
        plains += bench.timed({"": plain})[""]
        start = bench.clock()
        run(few)
        middle = bench.clock()
        run(many)
        shorts.append(middle - start)
        each.append((bench.clock() - middle - shorts[-1]) / (many - few))
    times = {"forward and backward of the network": plains, "an iteration of all units": each}
    spread = " to ".join(f"{1e3 * value:.1f}" for value in (min(each), max(each)))
    title = f"reconstruction, batches of {batch}: {few} iterations {min(shorts):.1f} s, each of {many - few} more {spread} ms"
    bench.show(title, times, "forward and backward of the network")


def estimators(bench: Bench) -> None:
    """Print the cost of an update of each estimator to that of torch.aminmax."""
    from qfunc import estimators as all_of_them

    x, scheme = bench.images(), Scheme(Int(8, signed=False), zero_point=ZeroPoint())
    works: dict[str, Callable[[], Any]] = {"torch.aminmax": lambda: torch.aminmax(x)}
    for name in all_of_them.__all__:
        estimator = getattr(all_of_them, name)()
        state = estimator.update(estimator.init(scheme, x), x, scheme)
        works[name] = lambda e=estimator, state=state: e.update(state, x, scheme)
    bench.show(f"estimators, {x.numel():,} values", bench.timed(works), "torch.aminmax")


PARTS = {part.__name__: part for part in (laws, calibration, forward, training, emulation, reconstruction, estimators)}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    parser.add_argument("--device", default="cpu" if found is None else found.type)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    bench = Bench(options.device, options.runs)
    where = torch.cuda.get_device_name() if bench.device == "cuda" else "no GPU: the CPU, with smaller networks"
    print(f"torch {torch.__version__}, {where}", flush=True)
    for name in options.only:
        start = time.perf_counter()
        try:
            PARTS[name](bench)
        except Exception as e:  # the other parts still run: time on a GPU is short
            print(f"\n{name}: {type(e).__name__}: {e}")
        print(f"({name}: {time.perf_counter() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
