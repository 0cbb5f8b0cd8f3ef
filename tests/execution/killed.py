"""A calibration from a stream in a process that kills itself at a given place.

It may be one of the processes of a group, of which only the last one is killed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import qfunc
from qfunc import estimators
from qfunc.execution import observers, stored_statistics
from qfunc.specs import edit
from tests.onnxruntime_target import ONNXRUNTIME

BATCHES = 12
"""The number of batches of a rank."""


def kill() -> None:
    """End this process as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


class Stream(IterableDataset[Tensor]):
    """Twelve batches of a rank, in turns from two workers."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        for i in range(worker.id, BATCHES, worker.num_workers):
            yield torch.randn(30 + i, 5, generator=torch.Generator().manual_seed(100 * self.rank + i)) * (1 + i)


def models() -> tuple[Any, ...]:
    """A network for five estimators: of extremes, a mean over batches, kept values that become counts, errors and moments."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    found = (estimators.MinMax(), estimators.Ema(), estimators.Quantile(0.99), estimators.Mse(), estimators.StdClip())
    return tuple(qfunc.quantize(edit.activations(estimator=e)(ONNXRUNTIME))(net) for e in found)


def killed_at(where: str) -> None:
    """Let this process die when it is there: 'batch N' runs, or is 'written N', 'replaced N'; 'never' else."""
    place, _, number = where.partition(" ")
    read, replace, fsync, count = observers.Observer.read, os.replace, os.fsync, [0]

    def dying_read(self: Any, arguments: Any, at: int) -> Any:
        if place == "batch" and at == int(number):
            kill()
        return read(self, arguments, at)

    def dying_fsync(descriptor: int) -> None:
        count[0] += 1
        if place == "written" and count[0] == int(number):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            kill()
        fsync(descriptor)

    def dying_replace(source: Any, target: Any) -> None:
        replace(source, target)
        if place == "replaced" and count[0] == int(number):
            kill()

    observers.Observer.read, os.replace, os.fsync = dying_read, dying_replace, dying_fsync  # type: ignore[assignment,method-assign]


def main(folder: str, where: str, rank: int, ranks: int) -> None:
    """Calibrate, and store all qparams and the numbers of the batches that ran."""
    torch.set_num_threads(1)
    if ranks > 1:
        meet, limit = Path(folder, "meet").as_uri(), timedelta(seconds=60)
        dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=ranks, timeout=limit)
    stored_statistics.INTERVAL = 0.0
    if rank == ranks - 1:
        killed_at(where)
    read = observers.Observer.read

    def logged(self: Any, arguments: Any, at: int) -> Any:
        found = read(self, arguments, at)
        with Path(folder, f"ran-{rank}").open("a") as log:
            print(at, file=log)
        return found

    observers.Observer.read = logged  # type: ignore[method-assign]
    stream = DataLoader(Stream(rank), batch_size=None, num_workers=2, multiprocessing_context="fork")
    resume = None if where == "uninterrupted" else Path(folder, "statistics.safetensors")
    found = qfunc.calibrate(stream, progress=False, resume=resume)(models())
    tensors = {f"{i} {name}": value.contiguous() for i, model in enumerate(found) for name, value in model.state_dict().items()}
    save_file(tensors, Path(folder, f"found-{rank}"))
    if ranks > 1:
        dist.destroy_process_group()
