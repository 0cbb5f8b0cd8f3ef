"""Sums over processes: float64 additions in order of rank, whatever the number of rows that a process adds for all."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from qfunc.reconstruction.hessian.ordered_sums import sum_in_order
from tests.processes import start_processes

SHAPES = ((1, 3), (2, 5), (3, 3), (7, 4))
"""Fewer rows than processes, as many, and more."""


def values(rank: int) -> list[Tensor]:
    """Values of very unlike sizes, so that the order of the additions shows."""
    generator = torch.Generator().manual_seed(rank)
    drawn = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in SHAPES]
    return [x * torch.exp(20 * torch.randn(x.shape, dtype=torch.float64, generator=generator)) for x in drawn]


def work(rank: int, ranks: int, folder: str) -> None:
    """One of the processes; gives transposed tensors, too, which are not contiguous."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=Path(folder, "meet").as_uri(), rank=rank, world_size=ranks)
    own = values(rank)
    found = sum_in_order([*own, own[-1].T], dist.group.WORLD)
    assert all(torch.equal(a, b) for a, b in zip(own, values(rank), strict=True))
    torch.save(found, Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2, 3])
def test_all_ranks_get_the_sums_in_order_of_rank(ranks: int, tmp_path: Path) -> None:
    start_processes(work, (ranks, str(tmp_path)), ranks)
    each = [[*v, v[-1].T] for v in map(values, range(ranks))]
    wanted = [functools.reduce(torch.add, of_shape) for of_shape in zip(*each, strict=True)]
    for rank in range(ranks):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    if ranks > 2:
        other = [functools.reduce(torch.add, reversed(of_shape)) for of_shape in zip(*each, strict=True)]
        assert not all(torch.equal(a, b) for a, b in zip(other, wanted, strict=True))  # else the order would not show


def test_one_process() -> None:
    assert sum_in_order(values(0), None)[0].equal(values(0)[0])
