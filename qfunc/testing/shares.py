"""Work that the processes of a group share: each does its part alone, and all of them fail if one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from qfunc.execution.distributed import alone

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Result = TypeVar("Result")


def gather_results(
    work: Callable[[int, int], Result], group: ProcessGroup | None, error: Callable[[str], Exception]
) -> list[Result]:
    """Return the results of work(rank, number of ranks) of all ranks, in order of rank.

    Args:
        work: The part of a rank. Steps that it calls without `group=` run in this process alone.
        group: The result of `distributed.ranks`; None for this process alone.
        error: The exception of the other ranks, from a text that names the rank that failed.

    >>> gather_results(lambda rank, ranks: (rank, ranks), None, RuntimeError)
    [(0, 1)]
    """
    if group is None:
        return [work(0, 1)]
    import torch.distributed as dist

    result, failure = None, None
    try:
        with alone():
            result = work(group.rank(), group.size())
    except Exception as e:
        failure = e
    outcomes: list[Any] = [None] * group.size()
    dist.all_gather_object(outcomes, (_text(failure), result), group=group)
    if failure is not None:
        raise failure
    for rank, (text, _) in enumerate(outcomes):
        if text:
            raise error(f"rank {rank}: {text}")
    return [each for _, each in outcomes]


def _text(failure: Exception | None) -> str:
    if failure is None:
        return ""
    return str(failure) if isinstance(failure, AssertionError) and str(failure) else f"{type(failure).__name__}: {failure}"
