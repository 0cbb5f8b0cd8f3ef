"""Sums of large tensors over the processes of a group, with the same bits for any number of processes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def sum_in_order(values: Sequence[Tensor], group: ProcessGroup | None) -> list[Tensor]:
    """Return the sums of the tensors of all ranks, added in order of rank.

    Each rank adds some of the rows for all, so that it sends and receives about twice the tensors, for any number of ranks.

    Args:
        values: Tensors of the same shapes on all ranks.
        group: The result of `ranks`; None for this process alone.
    """
    import torch.distributed as dist

    if group is None:
        return list(values)
    # NCCL takes tensors of its devices only.
    device = torch.device("cpu") if "cpu:" in dist.get_backend_config(group) else torch.accelerator.current_accelerator()
    sums = []
    for value in values:
        own = value.detach().to(device)
        total = torch.empty(own.shape, dtype=own.dtype, device=device)
        parts = list(zip(total.tensor_split(group.size()), own.tensor_split(group.size()), strict=True))
        for rank, (part, of) in enumerate(parts):
            found = (
                [torch.empty(of.shape, dtype=of.dtype, device=device) for _ in range(group.size())]
                if rank == group.rank()
                else None
            )
            if of.numel():
                dist.gather(of.contiguous(), found, group=group, group_dst=rank)
            if found is not None:
                part.copy_(functools.reduce(torch.add, found))
        for rank, (part, _) in enumerate(parts):
            if part.numel():
                dist.broadcast(part, group=group, group_src=rank)
        sums.append(total.to(value.device))
    return sums
