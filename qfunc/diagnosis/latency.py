"""The latency of a deployed plan, on its runtime."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from attrs import field, frozen
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.specs._check import integer, number
from qfunc.specs._values import short
from qfunc.specs.protocols import LoadingRunner, Runner

Latency = Callable[[Sequence[Any], Sequence[Tensor]], Sequence[float]]
"""(artifacts, the inputs of one batch) -> the seconds of each artifact."""

_WARM = 2


def _runner(instance: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, Runner):
        do = "Pass the target's own, target.runtime.runner, or another of qfunc.lowering."
        raise SpecError(where="RunTime.runner", found=short(value), wanted="a runner", do=do)


@frozen
class RunTime:
    """The least time of several runs of one batch, in seconds: other work of the machine can only add to it.

    Each artifact is loaded once. They run in turns, so that a machine that becomes slower makes all of them slower, and each
    runs twice before.

    Args:
        runner: A runner of this machine.
        runs: The least number of runs.
        seconds: The least time of all runs; short runs are repeated until it has passed.
    Raises:
        SpecError: no runner, fewer than one run, or a time that is not positive.

    >>> from qfunc.targets.runtimes import OnnxRuntimeRunner
    >>> RunTime(OnnxRuntimeRunner(threads=1))
    RunTime(runner=OnnxRuntimeRunner(threads=1), runs=30, seconds=0.1)
    """

    runner: Any = field(validator=_runner)
    runs: int = field(default=30, validator=integer(1))
    seconds: float = field(default=0.1, validator=number(positive=True))

    def __call__(self, artifacts: Sequence[Any], inputs: Sequence[Tensor]) -> list[float]:
        """Return the seconds of one batch for each artifact."""
        runner = self.runner
        loads = isinstance(runner, LoadingRunner)
        runs = [runner.loaded(a) if loads else partial(runner.run, a) for a in artifacts]
        return fastest_in_turns(runs, inputs, self.runs, self.seconds)


def fastest_in_turns(
    runs: Sequence[Callable[[Sequence[Tensor]], Any]], inputs: Sequence[Tensor], count: int, seconds: float = 0.0
) -> list[float]:
    """Return the least seconds of each function, which run in turns, and twice before.

    There are at least `count` turns, and so many that they take at least `seconds`.
    """
    taken = [list[float]() for _ in runs]
    begun = time.perf_counter()
    while runs and (len(taken[0]) < _WARM + count or time.perf_counter() - begun < seconds):
        for run, times in zip(runs, taken, strict=True):
            start = time.perf_counter()
            run(inputs)
            times.append(time.perf_counter() - start)
    return [min(times[_WARM:]) for times in taken]
