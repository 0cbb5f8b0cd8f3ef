"""Interleaved timing of several functions in one process, and ratios of the times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

Work = Callable[[], Any]
Times = dict[str, list[float]]
Clock = Callable[[], float]


def interleaved(works: dict[str, Work], runs: int, warm: int = 2, clock: Clock = time.perf_counter) -> Times:
    """Return the seconds of every run of every function, after `warm` rounds that are not counted."""
    taken: Times = {name: [] for name in works}
    for run in range(runs + warm):
        for name, work in works.items():
            start = clock()
            work()
            if run >= warm:
                taken[name].append(clock() - start)
    return taken


def ratio(times: Times, name: str, base: str) -> str:
    """Return the ratio of the medians (of the minima)."""
    median = statistics.median(times[name]) / statistics.median(times[base])
    return f"{median:.2f} ({min(times[name]) / min(times[base]):.2f})"


def ms(times: Times, name: str) -> str:
    """Return the median in milliseconds."""
    return f"{1e3 * statistics.median(times[name]):.2f}"


def forward(f: Callable[[Tensor], Tensor], x: Tensor) -> Work:
    """Return a function that computes f(x) without gradient."""

    def work() -> None:
        with torch.no_grad():
            f(x)

    return work


def both(f: Callable[[Tensor], Tensor], x: Tensor, learned: Iterable[Tensor] = ()) -> Work:
    """Return a function that computes f(x) and its gradients."""
    leaf, grad, learned = x.clone().requires_grad_(), torch.randn_like(x), list(learned)

    def work() -> None:
        for t in (leaf, *learned):
            t.grad = None
        f(leaf).backward(grad)

    return work
