"""Read ONNX files: CPU seconds beside onnx.load with one shape inference, and memory beside the weights.

    python benchmarks/reading.py FILE.onnx ...

Each file is read in turns, and the least times count.  Without files, a network of 300 convolutions is drawn.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import qfunc

ROUNDS = 5


def drawn(path: Path, layers: int = 300, channels: int = 64) -> Path:
    """Write a network of convolutions with ReLU."""
    rng, nodes, stored = np.random.default_rng(0), [], []
    for k in range(layers):
        stored.append(numpy_helper.from_array(rng.normal(size=(channels, channels, 3, 3)).astype(np.float32), f"w{k}"))
        nodes.append(helper.make_node("Conv", [f"x{k}", f"w{k}"], [f"y{k}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"y{k}"], [f"x{k + 1}"]))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", channels, "h", "w"]) for n in ("x0", f"x{layers}")]
    graph = helper.make_graph(nodes, "drawn", ends[:1], ends[1:], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def row(path: Path) -> str:
    """Return the row of a file."""

    def inferred() -> object:
        return onnx.shape_inference.infer_shapes(onnx.load(path))

    def read() -> object:
        return qfunc.read(path)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = qfunc.read(path)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    pairs = [(seconds(inferred), seconds(read)) for _ in range(ROUNDS)]
    plain, ours = min(p for p, _ in pairs), min(r for _, r in pairs)
    weights = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    return f"| {path.name} | {plain:.3f} | {ours:.3f} | {ours / plain:.2f} | {weights / 2**20:.1f} | {peak / 2**20:.1f} |"


def main() -> None:
    """Print the table as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    print("| file | onnx.load and shape inference, CPU s | qfunc.read, CPU s | ratio | weights, MiB | peak beyond, MiB |")
    print("|---|---|---|---|---|---|")
    with TemporaryDirectory() as folder:
        qfunc.read(drawn(Path(folder, "first.onnx"), 1, 1))  # imports
        for path in options.files or [drawn(Path(folder, "drawn.onnx"))]:
            print(row(path), flush=True)


if __name__ == "__main__":
    main()
