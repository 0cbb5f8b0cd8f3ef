"""Growth of the CPU time of each step with the depth and the batches of a residual network, and of a decoder's with its sizes.

    python benchmarks/growth.py [--page docs/scale.md] [--rows FILE] [--axes depth batches layers length]

The residual network is a chain of ResNet-18's blocks with few channels and small images, so that the time is that of the
bookkeeping. Each point is measured in a process of its own with one thread, by its CPU time, and the fastest of `--runs`
runs counts. The exponent is the slope of log(seconds) over log(size) between the two largest sizes. `--rows` stores each
point, and a later run measures the missing ones.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from cost import markdown, write
from networks import Block
from scale import exponent, in_processes
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.analysis.bit_sensitivity import HessianTrace, OutputMse
from qfunc.reconstruction import Method
from tests.decoding.decoders import Shape, Small

TARGET = targets.onnxruntime
CHANNELS, IMAGES, SIZE = 8, 4, 8
SIZES = {"depth": (8, 16, 32), "batches": (8, 32, 128), "layers": (4, 8, 16), "length": (1024, 4096, 16384)}
AXES = {
    "depth": "blocks, 2 batches",
    "batches": "batches, 2 blocks",
    "layers": "layers of a decoder",
    "length": "tokens of a decoder's cache, 2 layers",
}
TOKENS, WORDS = 8, 31
WITHOUT_BATCHES = ("capture", "quantize", "emulate", "deploy")

Steps = Iterator[tuple[str, Callable[[], Any]]]


def residual(depth: int) -> nn.Module:
    """Return a chain of residual blocks of two convolutions, whose outputs stay about as large, and a classifier."""
    torch.manual_seed(0)
    blocks = [Block(CHANNELS, CHANNELS, 1) for _ in range(depth)]
    for block in blocks:
        nn.init.constant_(block.bn2.weight, depth**-0.5)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 10))
    return nn.Sequential(nn.Conv2d(3, CHANNELS, 3, padding=1), *blocks, *head).eval()


def images(count: int) -> list[Tensor]:
    """Return batches of images."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(IMAGES, 3, SIZE, SIZE, generator=generator) for _ in range(count)]


def of_network(depth: int, count: int) -> Steps:
    """Yield the steps of the residual network."""
    model, batches = residual(depth), images(count)
    captured = qfunc.capture()(model)
    quantized = qfunc.quantize(TARGET)(captured)
    calibrated = qfunc.calibrate(batches[:2], progress=False)(quantized)
    budget, method = qfunc.SizeBudget(mean_bits=6), Method(iterations=2, batch=IMAGES)
    others = [targets.onnxruntime, targets.tensorrt]
    yield "capture", lambda: qfunc.capture()(model)
    yield "quantize", lambda: qfunc.quantize(TARGET)(captured)
    yield "calibrate", lambda: qfunc.calibrate(batches, progress=False)(quantized)
    yield "emulate", lambda: qfunc.emulate(TARGET)(calibrated)
    yield "deploy", lambda: qfunc.deploy(TARGET)(calibrated)
    yield "verify", lambda: qfunc.verify(TARGET)(calibrated, batches)
    yield "compare", lambda: qfunc.compare(batches, progress=False)(calibrated)
    yield "sensitivity", lambda: qfunc.sensitivity(batches, progress=False)(calibrated)
    yield "gptq, the classifier", lambda: qfunc.gptq(batches, progress=False)(calibrated)
    yield "reconstruct", lambda: qfunc.reconstruct(method, batches, progress=False)(calibrated)
    for loss in (OutputMse(), HessianTrace()):
        chosen = qfunc.mixed_precision(batches, (4,), budget, loss=loss, progress=False)
        yield f"mixed_precision, {type(loss).__name__}", lambda chosen=chosen: chosen(calibrated)
    yield "diagnose", lambda: qfunc.diagnose(TARGET, batches, progress=False)(model)
    yield "sweep, 2 targets", lambda: qfunc.sweep(others, batches, progress=False)(model)


def of_decoder(layers: int, length: int) -> Steps:
    """Yield capture, and a token after a prompt, by the float decoder, the simulation and the emulation."""
    torch.manual_seed(0)
    model = Small(Shape(layers=layers)).eval()
    made = qfunc.decoder(length)(model)
    prompt = made.inputs(torch.arange(TOKENS)[None] % WORDS)
    calibrated = qfunc.calibrate([prompt], progress=False)(qfunc.quantize(TARGET)(made.program))
    yield "decoder", lambda: qfunc.decoder(length)(model)
    networks = {"float": made.module, "simulated": calibrated, "emulated": qfunc.emulate(TARGET)(calibrated)}
    for name, network in networks.items():
        yield f"generate, {name}", lambda network=network: qfunc.generate(TOKENS, progress=False)(network, prompt)


def steps(axis: str, size: int) -> Steps:
    """Return the steps at a size."""
    match axis:
        case "depth":
            return of_network(size, 2)
        case "batches":
            return ((name, work) for name, work in of_network(2, size) if name not in WITHOUT_BATCHES)
        case "layers":
            return of_decoder(size, 32)
    return of_decoder(2, size)


def one(axis: str, size: int, runs: int) -> dict[str, float]:
    """Return the CPU seconds of each step; a small network fills caches before."""
    for _, work in steps(axis, {"length": 32}.get(axis, 2)):
        work()
    return {name: min(seconds(work) for _ in range(runs)) for name, work in steps(axis, size)}


def seconds(work: Callable[[], Any]) -> float:
    """Return the CPU seconds of a call, without the garbage of the one before."""
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


def rows_of(axis: str, points: dict[str, dict[str, float]]) -> str:
    """Return the table of an axis."""
    sizes = SIZES[axis]
    lines = []
    for name in points[str(sizes[0])]:
        times = [points[str(size)][name] for size in sizes]
        lines.append((f"`{name.split(',')[0]}`{name[len(name.split(',')[0]) :]}", *(f"{t:.2g}" for t in times)))
        lines[-1] += (exponent(list(sizes), times),)
    return markdown((AXES[axis], *(f"{size:,}" for size in sizes), f"exponent, {sizes[-2]:,} to {sizes[-1]:,}"), lines)


def main() -> None:
    """Measure what is missing, print the tables, and write them to the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="the Markdown file whose tables are replaced")
    parser.add_argument("--rows", type=Path, help="a file of the points that were measured")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--axes", nargs="+", choices=[*SIZES], default=[*SIZES])
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one[0], int(options.one[1]), options.runs)))
        return
    found: dict[str, dict[str, dict[str, float]]] = {}
    if options.rows and options.rows.exists():
        found = json.loads(options.rows.read_text())
    for axis, size in ((name, size) for name in options.axes for size in SIZES[name]):
        if str(size) not in found.setdefault(axis, {}):
            arguments = ["--one", axis, str(size), "--runs", str(options.runs)]
            (found[axis][str(size)],) = in_processes(arguments, 1, __file__)
            print(axis, size, found[axis][str(size)], file=sys.stderr, flush=True)
            if options.rows:
                options.rows.write_text(json.dumps(found))
    text = "\n".join(rows_of(axis, found[axis]) for axis in options.axes)
    print(text)
    if options.page:
        write(options.page, "growth", text)


if __name__ == "__main__":
    main()
