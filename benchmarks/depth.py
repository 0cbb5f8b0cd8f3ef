"""Seconds of each step by the depth of the network, and the exponent of their growth.

    python benchmarks/depth.py [--kinds plain residual dense] [--depths 10 100 1000 2000] [--target onnxruntime]

The layers have four channels and images of 4x4, so that the time is that of the bookkeeping.  A step that takes a fixed time
for each layer has exponent 1; the exponent is the slope between the two largest depths, in CPU seconds.  The garbage of one
step is collected before the next one.

A dense network of L layers has about L^2 / 2 edges, because each layer reads all earlier outputs: the float forward and the
file grow with the edges, too.  Its fair measure is therefore the second exponent, by the edges of the captured graph.  The
rows "float" and "ONNX Runtime loads" do no work of this library: `verify` contains the latter, and `deploy` a load without
optimisations, whose exponent is above 2, too.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

import qfunc
from qfunc import targets
from qfunc.analysis.report_format import table
from qfunc.targets.runtimes import OnnxRuntimeRunner

CHANNELS = 4


class Plain(nn.Module):
    """A chain of convolutions."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(layer(CHANNELS) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the last layer's output."""
        return self.layers(x)


class Residual(nn.Module):
    """A chain of blocks `x + layer(x)`."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer(CHANNELS, 1 / depth) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """Return the last block's output."""
        for block in self.layers:
            x = x + block(x)
        return x


class Dense(nn.Module):
    """Layers that read the concatenation of all earlier layers, as in DenseNet."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer(CHANNELS + i) for i in range(depth))
        self.growth = nn.ModuleList(nn.Conv2d(CHANNELS, 1, 1) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """Return the concatenation of all outputs."""
        features = [x]
        for block, grow in zip(self.layers, self.growth, strict=True):
            features.append(grow(block(torch.cat(features, 1))))
        return torch.cat(features, 1)


def layer(channels: int, gain: float = 1.0) -> nn.Module:
    """Return convolution, BatchNorm and ReLU that keep their input but for a little noise."""
    conv, norm = nn.Conv2d(channels, CHANNELS, 3, padding=1, bias=False), nn.BatchNorm2d(CHANNELS)
    with torch.no_grad():
        conv.weight.copy_(nn.init.dirac_(torch.empty_like(conv.weight)) + 1e-3 * torch.randn_like(conv.weight))
        norm.weight.fill_(gain)
    return nn.Sequential(conv, norm, nn.ReLU())


KINDS: dict[str, Callable[[int], nn.Module]] = {"plain": Plain, "residual": Residual, "dense": Dense}


def seconds(kind: str, depth: int, target: Any, options: argparse.Namespace) -> tuple[dict[str, tuple[float, float]], int]:
    """Return (wall, CPU) seconds of each step, and the edges of the captured graph."""
    torch.manual_seed(0)
    model, x = KINDS[kind](depth).eval(), torch.randn(2, CHANNELS, 4, 4)
    taken: dict[str, tuple[float, float]] = {}

    def step(name: str, work: Callable[[], Any]) -> Any:
        if options.steps and name not in options.steps and name in LAST:
            return None
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            result = work()
        except RecursionError:
            taken[name] = (math.nan, math.nan)
            return None
        taken[name] = (time.perf_counter() - wall, time.process_time() - cpu)
        return result

    step("float", lambda: model(x))
    captured = step("capture", lambda: qfunc.capture((x,) if options.export else None)(model))
    quantized = step("quantize", lambda: qfunc.quantize(target)(captured))
    calibrated = step("calibrate", lambda: qfunc.calibrate([x], progress=False)(quantized))
    step("simulate", lambda: calibrated(x))
    emulated = step("emulate", lambda: qfunc.emulate(target)(calibrated))
    if emulated is not None:
        step("run the emulation", lambda: emulated(x))
    artifact = step("deploy", lambda: qfunc.deploy(target)(calibrated))
    if "model.onnx" in artifact.files:
        step("ONNX Runtime loads", lambda: OnnxRuntimeRunner(threads=1).session(artifact.files["model.onnx"]))
    step("verify", lambda: qfunc.verify(target)(calibrated, [x]))
    step("explain", lambda: str(qfunc.explain(quantized)))
    step("compare", lambda: qfunc.compare([x], progress=False)(calibrated))
    with tempfile.TemporaryDirectory() as folder:
        step("save", lambda: qfunc.save(folder)(calibrated))
        step("load", lambda: qfunc.load(folder)(captured))
    return taken, sum(len(node.all_input_nodes) for node in captured.graph.nodes)


LAST = ("float", "ONNX Runtime loads", "simulate", "run the emulation", "verify", "explain", "compare", "load")


def exponent(points: Iterable[tuple[int, float]]) -> float:
    """Return the slope of log(seconds) by log(size), between the two largest sizes."""
    (n0, t0), (n1, t1) = sorted(points)[-2:]
    return math.log(t1 / t0) / math.log(n1 / n0)


def main() -> None:
    """Print a table for each kind of network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", default=[*KINDS])
    parser.add_argument("--depths", nargs="+", type=int, default=[10, 100, 1000, 2000])
    parser.add_argument("--dense", nargs="+", type=int, default=[10, 50, 100, 200])
    parser.add_argument("--steps", nargs="+")
    parser.add_argument("--target", default="onnxruntime")
    parser.add_argument("--export", action="store_true", help="capture by torch.export")
    options = parser.parse_args()
    target = getattr(targets, options.target)
    seconds("plain", 1, target, options)  # imports
    for kind in options.kinds:
        depths = options.dense if kind == "dense" else options.depths
        runs, edges = {}, {}
        for depth in tqdm(depths, kind, leave=False, disable=not sys.stderr.isatty()):
            runs[depth], edges[depth] = seconds(kind, depth, target, options)
        rows = []
        for name in runs[depths[0]]:
            times = [runs[d].get(name, (math.nan, math.nan))[1] for d in depths]
            sizes = (depths, [edges[d] for d in depths])
            slopes = [exponent(zip(size, times, strict=True)) if len(depths) > 1 else math.nan for size in sizes]
            rows.append([name, *(f"{t:.2f}" for t in times), *(f"{slope:.2f}" for slope in slopes)])
        print(f"\n{kind}, {target.name}: CPU seconds by depth")
        print(table(("step", *map(str, depths), "by depth", "by edges"), rows), flush=True)


if __name__ == "__main__":
    main()
