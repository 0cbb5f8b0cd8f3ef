"""Growth of CPU time, memory and traffic of each step with width, depth, batches and processes, beside that on paper.

    python benchmarks/scale.py [--page docs/scale.md] [--rows FILE]

Networks are chains of decoder blocks with random weights. Each point is measured in a process of its own with one thread, by
its CPU time, and the fastest of `--runs` runs counts. The exponent is the slope of log(seconds) over log(size) between the two
largest sizes; that on paper is the slope of the operations that `cost.py` counts at the same sizes, or of the weights, for
steps that only read or write these. Ranks share a fixed number of batches by gloo on this machine. Memory is the peak of a step
above that before it, by the number of batches. `--rows` stores each point, and a later run measures the missing ones.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cost import Network, Work, calibrate, gptq, markdown, reconstruct, sensitivity, write
from memory import measured
from torch import Tensor, nn
from torch import distributed as dist

import qfunc
from qfunc import targets
from qfunc.reconstruction import Method

TARGET = targets.onnxruntime
SEQUENCES, LENGTH, ITERATIONS, IMAGES = 4, 16, 40, 4
BASE = {"width": 256, "depth": 2, "batches": 4, "ranks": 1}
SIZES = {"width": (256, 512, 1024), "depth": (4, 8, 16), "batches": (8, 32, 128), "ranks": (1, 2, 4)}
AT = {
    "width": {},
    "depth": {"width": 64},
    "batches": {"width": 128, "depth": 1},
    "ranks": {"batches": 256, "width": 256, "depth": 1},
}
MEMORY = (8, 64)
SHARED = ("calibrate", "compare", "sensitivity", "correct_bias", "gptq")
STEPS = ("quantize", "calibrate", "compare", "sensitivity", "correct_bias", "gptq", "reconstruct", "emulate", "deploy")


class Block(nn.Module):
    """Attention with one head for 64 channels, and a gated feed-forward layer, as in Llama."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 3 * width) for _ in range(2))
        self.down = nn.Linear(3 * width, width)

    def split(self, x: Tensor) -> Tensor:
        """Return [batch, heads, length, 64] of [batch, length, width]."""
        return x.reshape(x.shape[0], x.shape[1], self.heads, 64).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        h = self.norm1(x)
        q, k, v = self.split(self.q(h)), self.split(self.k(h)), self.split(self.v(h))
        scores = torch.softmax(torch.matmul(q, k.transpose(2, 3)) / 8, -1)
        x = x + self.o(torch.matmul(scores, v).transpose(1, 2).reshape(x.shape))
        h = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


def on_paper(step: str, point: dict[str, int]) -> float:
    """Return the operations of a step for a rank, or the weights that it reads."""
    width = point["width"]
    net = Network(width, 3 * width, point["depth"], 1, 1)
    tokens = SEQUENCES * LENGTH * point["batches"] / point["ranks"]
    work: dict[str, Callable[[], Work]] = {
        "calibrate": lambda: calibrate(net, tokens, LENGTH),
        "compare": lambda: calibrate(net, 2 * tokens, LENGTH),
        "sensitivity": lambda: sensitivity(net, tokens, LENGTH),
        "correct_bias": lambda: calibrate(net, tokens, LENGTH),
        "gptq": lambda: gptq(net, tokens, LENGTH),
        "reconstruct": lambda: reconstruct(net, tokens, LENGTH, ITERATIONS * IMAGES * LENGTH),
    }
    return work[step]().operations if step in work else net.parameters


def prepared(point: dict[str, int]) -> tuple[nn.Module, list[Tensor]]:
    """Return a network and the batches of this rank."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(point["width"]) for _ in range(point["depth"]))).eval().requires_grad_(False)
    rank = dist.get_rank() if dist.is_initialized() else 0
    generator = torch.Generator().manual_seed(rank)
    count = point["batches"] // point["ranks"]
    return model, [torch.randn(SEQUENCES, LENGTH, point["width"], generator=generator) for _ in range(count)]


def actions(model: nn.Module, batches: list[Tensor]) -> dict[str, Callable[[], Any]]:
    """Return the steps; what each needs is made here."""
    alone = dist.new_subgroups(1)[0] if dist.is_initialized() else None
    quantized = qfunc.quantize(TARGET)(model)
    calibrated = qfunc.calibrate(batches[:1], progress=False, group=alone)(quantized)
    method = Method(iterations=ITERATIONS, batch=IMAGES)
    return {
        "quantize": lambda: qfunc.quantize(TARGET)(model),
        "calibrate": lambda: qfunc.calibrate(batches, progress=False)(quantized),
        "compare": lambda: qfunc.compare(batches, progress=False)(calibrated),
        "sensitivity": lambda: qfunc.sensitivity(batches, progress=False)(calibrated),
        "correct_bias": lambda: qfunc.correct_bias(batches, progress=False)(calibrated),
        "gptq": lambda: qfunc.gptq(batches, progress=False)(calibrated),
        "reconstruct": lambda: qfunc.reconstruct(method, batches, progress=False)(calibrated),
        "emulate": lambda: qfunc.emulate(TARGET)(calibrated),
        "deploy": lambda: qfunc.deploy(TARGET)(calibrated),
    }


def one(point: dict[str, int], steps: list[str], runs: int) -> dict[str, Any]:
    """Return the CPU seconds of each step, and the bytes that this process sends in it."""
    sent, found = _counted(), dict[str, Any]()
    works = actions(*prepared(point))
    warm = actions(*prepared({**point, "width": 64, "depth": 1}))
    for step in steps:
        warm[step]()
        taken = []
        for _ in range(runs):
            sent[0], start = 0, time.process_time()
            works[step]()
            taken.append(time.process_time() - start)
        found[step] = {"seconds": min(taken), "sent": sent[0]}
    return found


def _counted() -> list[int]:
    # Count what this process gives to the collectives that the steps use.
    sent, objects, gather, broadcast = [0], dist.all_gather_object, dist.gather, dist.broadcast

    def counting_objects(values: Any, value: Any, *args: Any, **how: Any) -> Any:
        sent[0] += len(pickle.dumps(value))
        return objects(values, value, *args, **how)

    def counting_gather(tensor: Tensor, *args: Any, **how: Any) -> Any:
        sent[0] += tensor.numel() * tensor.element_size()
        return gather(tensor, *args, **how)

    def counting_broadcast(tensor: Tensor, *args: Any, **how: Any) -> Any:
        sent[0] += tensor.numel() * tensor.element_size() * (how.get("group_src") == dist.get_rank())
        return broadcast(tensor, *args, **how)

    dist.all_gather_object, dist.gather, dist.broadcast = counting_objects, counting_gather, counting_broadcast
    return sent


def peaks(count: int) -> dict[str, float]:
    """Return the peak memory in MiB of the steps that read batches, for batches of 1 MiB that are made one at a time."""
    model, few = prepared({**BASE, "width": 64, "depth": 1})
    found = {}
    for step in SHARED:
        for n in (4, count):  # the first fills caches
            stream = (torch.randn(256, LENGTH, 64) for _ in range(n))
            quantized = qfunc.quantize(TARGET)(model)
            given = quantized if step == "calibrate" else qfunc.calibrate(few, progress=False)(quantized)
            _, numbers = measured(lambda f=getattr(qfunc, step), stream=stream, given=given: f(stream, progress=False)(given))
        found[step] = numbers["peak"] / 2**20
    return found


def in_processes(arguments: list[str], ranks: int, script: str = __file__) -> list[Any]:
    """Return what each process of a group prints that runs a script."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "WORLD_SIZE": str(ranks)}
        environment["MEET"] = Path(folder, "meet").as_uri()
        command = [sys.executable, script, *arguments]
        started = [
            subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
            for rank in range(ranks)
        ]
        outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{arguments} failed")
    return [json.loads(output) for output in outputs]


def measure(axis: str, size: int, runs: int) -> dict[str, Any]:
    """Return the numbers of a point: of the slowest process."""
    point = {**BASE, **AT[axis], axis: size}
    steps = SHARED if axis in ("ranks", "batches") else STEPS
    each = in_processes(["--one", json.dumps(point), "--runs", str(runs), "--steps", *steps], point["ranks"])
    slowest = {step: max((found[step] for found in each), key=lambda numbers: numbers["seconds"]) for step in steps}
    return {"axis": axis, "point": point, "steps": slowest}


def exponent(sizes: list[int], values: list[float]) -> str:
    """Return the slope of log(value) over log(size) between the last two points."""
    return f"{math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2]):.2f}"


def growth(rows: list[dict[str, Any]]) -> str:
    """Return the table of exponents, measured and on paper."""
    lines = []
    for step in STEPS:
        cells = []
        for axis in SIZES:
            points = [row for row in rows if row["axis"] == axis and step in row["steps"]]
            if not points:
                cells.append("")
                continue
            sizes = [row["point"][axis] for row in points]
            taken = exponent(sizes, [row["steps"][step]["seconds"] for row in points])
            cells.append(f"{taken} ({exponent(sizes, [on_paper(step, row['point']) for row in points])})")
        slowest = max(row["steps"][step]["seconds"] for row in rows if step in row["steps"])
        lines.append((f"`{step}`", *cells, f"{slowest:.2g}"))
    heads = [f"{axis}, {' to '.join(map(str, sizes[-2:]))}" for axis, sizes in SIZES.items()]
    return markdown(("step", *heads, "most CPU seconds"), lines)


def traffic(rows: list[dict[str, Any]]) -> str:
    """Return the table of the bytes that a rank sends."""
    points = [row for row in rows if row["axis"] == "ranks"]
    lines = [(f"`{s}`", *(f"{row['steps'][s]['sent'] / 2**10:,.0f}" for row in points)) for s in SHARED]
    return markdown(("KiB that a rank sends", *(f"ranks: {row['point']['ranks']}" for row in points)), lines)


def memory(found: dict[str, dict[str, float]]) -> str:
    """Return the table of peaks."""
    lines = [(f"`{step}`", *(f"{found[str(n)][step]:,.0f}" for n in MEMORY)) for step in SHARED]
    return markdown(("MiB at most", *(f"{n} batches, {n} MiB" for n in MEMORY)), lines)


def main() -> None:
    """Measure what is missing, print the tables, and write them to the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="the Markdown file whose tables are replaced")
    parser.add_argument("--rows", type=Path, help="a file of the points that were measured")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--steps", nargs="+", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--peaks", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peaks:
        print(json.dumps(peaks(options.peaks)))
        return
    if options.one:
        if options.one["ranks"] > 1:
            rank = int(os.environ["RANK"])
            dist.init_process_group("gloo", init_method=os.environ["MEET"], rank=rank, world_size=options.one["ranks"])
        print(json.dumps(one(options.one, options.steps, options.runs)))
        return
    rows = json.loads(options.rows.read_text()) if options.rows and options.rows.exists() else []
    for axis, size in ((axis, size) for axis, sizes in SIZES.items() for size in sizes):
        if not any(row["axis"] == axis and row["point"][axis] == size for row in rows):
            rows.append(measure(axis, size, options.runs))
            print(axis, size, {s: round(n["seconds"], 3) for s, n in rows[-1]["steps"].items()}, file=sys.stderr, flush=True)
            if options.rows:
                options.rows.write_text(json.dumps(rows))
    found = {str(count): in_processes(["--peaks", str(count)], 1)[0] for count in MEMORY}
    text = "\n".join((growth(rows), traffic(rows), memory(found)))
    print(text)
    if options.page:
        write(options.page, "scale", text)


if __name__ == "__main__":
    main()
