"""Time to the first step of a compiled network in DistributedDataParallel: float, and quantized with LSQ.

    python benchmarks/first_step.py [--processes 2] [--size 64] [--target tensorrt]

Each row starts new processes (gloo, one thread each) that train a ResNet-18 by one step.  The first row of a network has an
empty cache of the compiler, the second one the cache of the first.  The time is CPU time of rank 0, with its compilers.
The filled cache has compiled kernels only: PyTorch caches no graphs that it divides for DistributedDataParallel.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
from datetime import timedelta
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from networks import resnet18
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import qfunc
from qfunc import recipes, targets
from qfunc.analysis.report_format import table


def seconds() -> float:
    """Return the CPU time of this process and of the compilers that it ran."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def network(target: str | None, x: torch.Tensor) -> nn.Module:
    """Return the float network, or the quantized one."""
    if target is None:
        return resnet18().train()
    quantized = qfunc.quantize(recipes.lsq()(getattr(targets, target)), batch_norm=qfunc.TrainBatchNorm())(resnet18())
    return qfunc.calibrate([x], progress=False)(quantized).train()


def work(rank: int, processes: int, target: str | None, size: int, folder: str, queue: SimpleQueue[float]) -> None:
    """Run one compiled step in one process of the group; rank 0 reports its CPU time."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/cache{rank}"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    file = Path(folder, f"group{os.getppid()}{len(list(Path(folder).glob('done*')))}")
    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=processes, timeout=timedelta(minutes=30)
    )
    x = torch.randn(2, 3, size, size)
    model: Any = DistributedDataParallel(network(target, x))
    start = seconds()
    F.cross_entropy(torch.compile(model)(x), torch.arange(2)).backward()
    if rank == 0:
        queue.put(seconds() - start)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Print a row for each network and cache."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--target", default="tensorrt")
    options = parser.parse_args()
    found: dict[str | None, list[float]] = {None: [], options.target: []}
    for target in tqdm(found, "networks"):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("empty", "filled"):
                queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
                arguments = (options.processes, target, options.size, folder, queue)
                torch.multiprocessing.spawn(work, arguments, nprocs=options.processes)
                found[target].append(queue.get())
                Path(folder, f"done {name}").touch()
    rows = [
        [name, f"{real:.1f}", f"{mine:.1f}", f"{mine / real:.2f}"]
        for name, real, mine in zip(("empty", "filled"), *found.values(), strict=True)
    ]
    print(f"\nCPU seconds to the first step, ResNet-18, {options.processes} processes")
    print(table(("cache", "float", f"LSQ, {options.target}", "ratio"), rows))


if __name__ == "__main__":
    main()
