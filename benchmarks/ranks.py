"""Reconstruction in one process and in several: CPU seconds and memory of each, and the weights that are rounded otherwise.

    python benchmarks/ranks.py [--processes 2] [--images 256] [--size 48] [--iterations 40] [--methods adaround qdrop]

Each row reconstructs the units of a ResNet-18 with random weights, on `targets.academic(4, 4)`, in processes of one thread with
gloo, which share the images.  One process with the parts of the others must give their bits.  "Rounded otherwise" counts the
weights against one process without parts.  CPU seconds are those of the process that needs most, from the first batch to the
result; on a machine with as many free cores as processes, the time is about as long.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from networks import resnet18
from torch import Tensor
from tqdm import tqdm

import qfunc
from qfunc import targets
from qfunc.analysis.report_format import table
from qfunc.execution.distributed import alone

BATCH = 32


def work(rank: int, folder: str, options: argparse.Namespace, method: str, processes: int, parts: int) -> None:
    """Reconstruct in one of the processes, and store what it took and found."""
    torch.set_num_threads(1)
    if processes > 1:
        dist.init_process_group("gloo", init_method=Path(folder, "meet").as_uri(), rank=rank, world_size=processes)
    torch.manual_seed(0)
    batches = torch.randn(options.images, 3, options.size, options.size).split(BATCH)
    with alone():
        model = qfunc.calibrate(batches[:1], progress=False)(qfunc.quantize(targets.academic(4, 4))(resnet18()))
    each = len(batches) // processes
    own = [b.clone() for b in batches[rank * each : (rank + 1) * each]]
    chosen: Any = getattr(qfunc, method)(iterations=options.iterations, batch=BATCH, rounding_lr=0.05)
    split = (each // parts,) * parts if parts > 1 else None
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = qfunc.reconstruct(chosen, own, progress=False, parts=split)(model)
    taken, after = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    torch.save((found.state_dict(), taken, (after - before) / 2**10), Path(folder, f"{rank}.pt"))


def run(options: argparse.Namespace, method: str, processes: int, parts: int) -> tuple[dict[str, Tensor], float, float]:
    """Return the state of all processes, which must be the same, and the most CPU seconds and MiB of one."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (folder, options, method, processes, parts), nprocs=processes)
        found = [torch.load(Path(folder, f"{rank}.pt")) for rank in range(processes)]
    for state, _, _ in found:
        assert all(torch.equal(v, found[0][0][k]) for k, v in state.items()), "the processes differ"
    return found[0][0], max(each[1] for each in found), max(each[2] for each in found)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--methods", nargs="+", default=["adaround", "qdrop"])
    options = parser.parse_args()
    rows = []
    for method in tqdm(options.methods, leave=False):
        runs = {"one": (1, 1), "one, in parts": (1, options.processes), f"{options.processes}": (options.processes, 1)}
        states = {}
        for name, (processes, parts) in runs.items():
            states[name], seconds, memory = run(options, method, processes, parts)
            decided = {k: v for k, v in states[name].items() if k.endswith(".v")}
            other = sum(int((v != states["one"][k]).sum()) for k, v in decided.items())
            count = sum(v.numel() for v in decided.values())
            rows.append([method, name, f"{seconds:.1f}", f"{memory:.0f}", f"{other:,} of {count:,}"])
        one, several = list(states.values())[1:]
        assert all(torch.equal(v, several[k]) for k, v in one.items()), "one process with parts differs from several"
    print(table(("method", "processes", "CPU seconds", "MiB more", "rounded otherwise"), rows))


if __name__ == "__main__":
    main()
