"""Memory and time of each step for transformers of several depths, as ratios to the float32 weights.

    python benchmarks/memory.py [--width 512] [--depths 3 6 12 24] [--targets onnxruntime_nbits gguf ...]

Each network is measured in a process of its own (Linux).  For a step, "peak" is the most resident memory during the step above
that before it, in float32 weights of the network; "kept" is what remains after it; CPU seconds are those of all threads.  The
last rows are exponents: the slope of log(seconds) over log(depth), 1 for linear time.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

TARGETS = ("onnxruntime_nbits", "gguf", "executorch_8da4w", "onnxruntime")
STEPS = ("quantize", "calibrate", "simulate", "save", "emulate", "run emulation", "deploy")


class Block(nn.Module):
    """Attention with one head for 64 channels, and a gated feed-forward layer, as in Llama."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def split(self, x: Tensor) -> Tensor:
        """Return [batch, heads, length, 64] of [batch, length, width]."""
        return x.reshape(1, -1, self.heads, 64).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        h = self.norm1(x)
        q, k, v = self.split(self.q(h)), self.split(self.k(h)), self.split(self.v(h))
        scores = torch.softmax(torch.matmul(q, k.transpose(2, 3)) / 8, -1)
        x = x + self.o(torch.matmul(scores, v).transpose(1, 2).reshape(1, -1, self.heads * 64))
        h = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


def status(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    line = next(entry for entry in Path("/proc/self/status").read_text().splitlines() if entry.startswith(field))
    return int(line.split()[1]) * 1024


def measured(action: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return the result of an action, the bytes of its peak and of what it keeps, and its CPU seconds."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # memory that was freed is no longer resident
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins anew
    before, start = status("VmRSS"), time.process_time()
    result = action()
    seconds, peak = time.process_time() - start, status("VmHWM")
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return result, {"peak": peak - before, "kept": status("VmRSS") - before, "seconds": seconds}


def measure(name: str, width: int, depth: int) -> dict[str, Any]:
    """Return the numbers of all steps for one network, in this process."""
    import qfunc
    from qfunc import targets

    found: Any = getattr(targets, name)
    target = found("Q4_0") if name == "gguf" else found() if callable(found) else found
    torch.manual_seed(0)
    x = torch.randn(1, 16, width)
    small = nn.Sequential(Block(128)).eval()  # what is loaded or compiled once is not measured
    warm = qfunc.calibrate([x[..., :128]], progress=False)(qfunc.quantize(target)(small))
    qfunc.deploy(target)(warm)
    qfunc.emulate(target)(warm)(x[..., :128])
    model = nn.Sequential(*(Block(width) for _ in range(depth))).eval()
    rows: dict[str, Any] = {}
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        quantized, rows["quantize"] = measured(lambda: qfunc.quantize(target)(model))
        calibrated, rows["calibrate"] = measured(lambda: qfunc.calibrate([x], progress=False)(quantized))
        _, rows["simulate"] = measured(lambda: calibrated(x))
        calibrated.eval()  # drops the weights that the simulation keeps
        _, rows["save"] = measured(lambda: qfunc.save(Path(folder, "saved"))(calibrated))
        emulation, rows["emulate"] = measured(lambda: qfunc.emulate(target)(calibrated))
        _, rows["run emulation"] = measured(lambda: emulation(x))
        artifact, rows["deploy"] = measured(lambda: qfunc.deploy(target)(calibrated))
    weights = 4 * sum(p.numel() for p in model.parameters())
    files = sum(len(content) for content in artifact.files.values())
    return {"depth": depth, "weights": weights, "files": files, "steps": rows}


def exponent(rows: list[dict[str, Any]], step: str) -> float:
    """Return the slope of log(seconds) over log(depth) from the first network to the last."""
    first, last = rows[0], rows[-1]
    ratio = last["steps"][step]["seconds"] / first["steps"][step]["seconds"]
    return math.log(ratio) / math.log(last["depth"] / first["depth"])


def main() -> None:
    """Print one table a target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depths", type=int, nargs="+", default=[3, 6, 12, 24])
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, width, depth = options.one
        print(json.dumps(measure(name, int(width), int(depth))))
        return
    for name in options.targets:
        rows = []
        for depth in options.depths:
            command = [sys.executable, __file__, "--one", name, str(options.width), str(depth)]
            environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_MMAP_THRESHOLD_": "65536"}
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
            rows.append(json.loads(done.stdout))
        print(f"\n{name}, width {options.width}")
        print(f"{'depth':>14} {'weights':>9} {'files':>9}  " + " ".join(f"{step:>21}" for step in STEPS))
        for row in rows:
            cells = [row["steps"][step] for step in STEPS]
            w = row["weights"]
            texts = [f"{c['peak'] / w:6.2f}x {c['kept'] / w:5.2f}x {c['seconds']:5.1f} s" for c in cells]
            sizes = f"{row['depth']:>14} {w / 2**20:6.0f} MB {row['files'] / 2**20:6.0f} MB  "
            print(sizes + " ".join(f"{text:>21}" for text in texts))
        if len(rows) > 1:
            slopes = " ".join(f"{exponent(rows, step):21.2f}" for step in STEPS)
            print(f"{'exponent':>14} {'':>9} {'':>9}  {slopes}", flush=True)


if __name__ == "__main__":
    main()
