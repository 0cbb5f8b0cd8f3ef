"""Processes that a server forks, which imports qfunc once: an import takes longer than most tests in processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch

SHARED = ("qfunc", "qfunc.targets", "qfunc.testing", "tests.shared_imports")
"""The modules that the server imports. Each test's own module is imported by the process itself."""


def start_processes(work: Callable[..., None], arguments: tuple[Any, ...], count: int, *, join: bool = True) -> Any:
    """Call `work(rank, *arguments)` in processes, and raise what one of them raised.

    Args:
        work: A function of a module.
        count: The number of processes.
        join: If False, return the context of the processes and do not wait for them.
    """
    _share()
    return torch.multiprocessing.start_processes(work, arguments, nprocs=count, join=join, start_method="forkserver")


def exit_codes(work: Callable[..., None], arguments: list[tuple[Any, ...]], seconds: float = 120) -> list[int | None]:
    """Call `work(*arguments)` in a process for each tuple. If the last one fails, terminate the others, as torchrun does."""
    _share()
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=work, args=each) for each in arguments]
    for process in processes:
        process.start()
    try:
        processes[-1].join(seconds)
        for process in processes[:-1]:
            if processes[-1].exitcode:
                process.terminate()
            process.join(seconds)
        return [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _share() -> None:
    multiprocessing.set_forkserver_preload(list(SHARED))
