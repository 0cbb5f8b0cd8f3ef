"""Time and memory of calibration, relative to the float loop, for one target and for two.

    python benchmarks/calibration.py [--batches 4] [--size 224] [--runs 9]

Runs are interleaved in one process.  Medians of wall and process CPU time are printed as ratios to the float loop.  Peak
memory is that of fresh processes at 64, 256 and 1,024 images.  ONNX Runtime's quantize_static runs in the same comparison.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from networks import resnet18
from torch import Tensor

import qfunc
from qfunc import targets
from qfunc.analysis.report_format import table
from qfunc.specs import edit

BATCH = 8


def batches(count: int, size: int) -> Iterator[Tensor]:
    """Yield random images, one batch at a time."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.randn(BATCH, 3, size, size, generator=generator)


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Return (wall, process CPU) seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def float_onnx(model: Any, size: int) -> bytes:
    """Return the network as float ONNX: deployed with every op in float."""
    everything = edit.op(
        "conv", "linear", "add", "global_avg_pool", "matmul", "mul", "concat", "avg_pool", "sigmoid", "softmax", "leaky_relu"
    )
    target = edit.skip(everything)(targets.onnxruntime)
    calibrated = qfunc.calibrate(batches(1, size), progress=False)(qfunc.quantize(target)(model))
    return qfunc.deploy(target)(calibrated).files["model.onnx"]


def quantize_static(model: bytes, count: int, size: int) -> Callable[[], None]:
    """Run ONNX Runtime's own tool on the same images."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat
    from onnxruntime.quantization import quantize_static as tool

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = batches(count, size)

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self.left, None)
            return None if batch is None else {"x": batch.numpy()}

    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "float.onnx"
            source.write_bytes(model)
            tool(source, Path(folder) / "int8.onnx", Reader(), quant_format=QuantFormat.QDQ, per_channel=True)

    return work


def time_table(options: argparse.Namespace) -> None:
    """Print the ratios."""
    model = resnet18()
    captured = qfunc.capture()(model)
    one = qfunc.quantize(targets.onnxruntime)(model)
    two = (one, qfunc.quantize(targets.tensorrt)(model))
    data = list(batches(options.batches, options.size))

    def float_loop() -> None:
        with torch.inference_mode():
            for batch in data:
                captured(batch)

    works: dict[str, Callable[[], Any]] = {
        "float loop": float_loop,
        "calibrate, one target": lambda: qfunc.calibrate(data, progress=False)(one),
        "calibrate, two targets": lambda: qfunc.calibrate(data, progress=False)(two),
    }
    for work in works.values():
        work()
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(options.runs):
        for name, work in works.items():
            taken[name].append(timed(work))
    if not options.quick:
        static = quantize_static(float_onnx(model, options.size), options.batches, options.size)
        taken["onnxruntime quantize_static"] = [timed(static) for _ in range(3)]
    base = [statistics.median(t[i] for t in taken["float loop"]) for i in (0, 1)]
    rows = []
    for name, times in taken.items():
        wall, cpu = (statistics.median(t[i] for t in times) for i in (0, 1))
        rows.append([name, f"{wall:.2f}", f"{cpu:.2f}", f"{wall / base[0]:.2f}", f"{cpu / base[1]:.2f}"])
    print(f"ResNet-18, {options.batches} batches of {BATCH}, {options.size}x{options.size}, median of {options.runs}")
    print(table(("what", "wall, s", "CPU, s", "wall ratio", "CPU ratio"), rows))


def memory_table(size: int) -> None:
    """Print the peak memory of fresh processes."""
    rows, base = [], 0
    for images in (64, 256, 1024):
        command = [sys.executable, __file__, "--peak", str(images // BATCH), "--size", str(size)]
        peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        base = base or peak
        rows.append([f"{images:,}", f"{peak / 1024:.0f}", f"{100 * (peak / base - 1):+.1f} %"])
    print(f"\npeak memory of a fresh process, {size}x{size}")
    print(table(("images", "MiB", "growth"), rows))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="omit quantize_static and memory")
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        import resource

        qfunc.calibrate(batches(options.peak, options.size), progress=False)(qfunc.quantize(targets.onnxruntime)(resnet18()))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return
    time_table(options)
    if not options.quick:
        memory_table(112)


if __name__ == "__main__":
    main()
