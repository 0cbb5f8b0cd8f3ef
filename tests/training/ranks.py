"""Two processes of one group that train side by side; the second saves what came of it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import qfunc
from qfunc import functions, recipes, targets
from qfunc.specs import edit
from tests.training.nets import CLASSES, batch, loss_of, net, student

PARTS = slice(0, 5), slice(5, 8)
"""Which examples of a batch of 8 are whose: not as many each."""


def made(name: str, sync: bool = True) -> Any:
    """A student in float64, but for scales; its BatchNorms over all processes if the name says so, unless `sync` is False."""
    recipe, how = name.split()
    target = recipes.lsq()(targets.tensorrt) if recipe == "lsq" else recipes.lsq_plus()(targets.academic(4, 4))
    kind: Any = nn.SyncBatchNorm if how == "sync" and sync else nn.BatchNorm2d
    norms = qfunc.FoldBatchNorm() if how == "folded" else qfunc.TrainBatchNorm()
    model = student(target, net(torch.float64, kind), batch_norm=norms)
    return qfunc.freeze_batch_norm(model) if how == "frozen" else model


CASES = ("lsq folded", "lsq frozen", "lsq sync", "lsq_plus sync")


def trained(model: nn.Module, part: slice, processes: int) -> dict[str, dict[str, Tensor]]:
    """The first gradients, and what two steps make of parameters and buffers."""
    optimizer, gradients = torch.optim.SGD(model.parameters(), lr=0.05), dict[str, Tensor]()
    for seed in (1, 2):
        optimizer.zero_grad()
        found = model(batch(seed).double()[part])
        # Data parallel training takes the mean over processes.
        (F.cross_entropy(found, CLASSES[part], reduction="sum") / 8 * processes).backward()
        if not gradients:
            gradients = {n.removeprefix("module."): p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
    return {"gradients": gradients, "state": {n.removeprefix("module."): t for n, t in model.state_dict().items()}}


NOISY = edit.pipe(
    targets.tensorrt,
    edit.activations(function=functions.QDrop(functions.Lsq(batch_axis=0))),
    edit.weights(function=functions.Stochastic()),
)
"""Activations drop and weights round at random."""


def noisy() -> Any:
    """A student with both kinds of noise."""
    return student(NOISY)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, seeds: range) -> None:
    """One on each batch."""
    for seed in seeds:
        optimizer.zero_grad()
        loss_of(model, batch(seed)).backward()
        optimizer.step()


def side_by_side(rank: int, folder: str) -> dict[str, Any]:
    """What this process finds in every case, beside another."""
    models = {name: made(name) for name in CASES}  # before there is a group, which would calibrate together
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=Path(folder, "meet").as_uri(), rank=rank, world_size=2, timeout=limit)
    try:
        return {n: trained(DistributedDataParallel(m), PARTS[rank], 2) for n, m in models.items()}
    finally:
        dist.destroy_process_group()


def other(_: int, folder: str) -> None:
    """The other process, which first trains alone."""
    torch.set_num_threads(1)
    alone = noisy()
    optimizer = torch.optim.Adam(alone.parameters(), lr=0.01)
    steps(alone, optimizer, range(2))
    torch.save({"model": alone.state_dict(), "optimizer": optimizer.state_dict()}, Path(folder, "half.pt"))
    steps(alone, optimizer, range(2, 4))
    torch.save({"cases": side_by_side(1, folder), "resumed": alone.state_dict()}, Path(folder, "done.pt"))
