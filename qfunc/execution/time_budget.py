"""The time of a reconstruction: an estimate before it starts, and a budget that stops it between units."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from qfunc.errors import CalibrationError

PASSES = 4.2
"""The time of an iteration of all units, in forward passes of the float network on as many images: forward and backward are
about three, and take 1.4 times as long with AdaRound (benchmarks/reconstruction.py)."""

OVERHEAD = 6e-4
"""The seconds of an iteration of a unit that its size does not change."""


def seconds_per_iteration(
    network: fx.GraphModule, arguments: Mapping[str, Tensor], units: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return an estimate of the seconds of one iteration of all units, from the faster of two passes of the float network.

    Args:
        network: The float network.
        arguments: The images of one iteration, by the name of the input.
        units: The number of units.
        clock: A function that returns seconds.
    """
    taken = []
    for _ in range(2):
        start = clock()
        with torch.no_grad():
            fx.Interpreter(network).run(*arguments.values(), enable_io_processing=False)
        taken.append(clock() - start)
    return PASSES * min(taken) + OVERHEAD * units


class Budget:
    """Decides before each unit if there is time for it.

    The first unit is expected to take its share of the estimate, each other one the mean of those before.

    Args:
        seconds: The budget; None for no limit.
        units: The number of units.
        estimate: The estimate of the seconds of all units.
        start: The time at which the reconstruction began.
        clock: A function that returns seconds.
    """

    def __init__(
        self, seconds: float | None, units: int, estimate: float, start: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds, self.expected, self.start, self.clock = seconds, estimate / max(units, 1), start, clock
        self.units, self.done, self.begun = units, 0, clock()

    def allows(self) -> bool:
        """Return True if the next unit is expected to end within the budget.

        Raises:
            CalibrationError: there is no time for the first unit.
        """
        if self.seconds is None:
            return True
        now = self.clock()
        expected = (now - self.begun) / self.done if self.done else self.expected
        if now - self.start + expected <= self.seconds:
            return True
        if self.done:
            return False
        raise CalibrationError(
            where="reconstruct, seconds",
            found=f"{self.seconds:g} s",
            wanted=f"about {now - self.start + expected:.2g} s for the first of {self.units} units",
            do="Allow more time, or take fewer iterations or smaller units.",
        )

    def count(self) -> None:
        """Count a unit that is done."""
        self.done += 1


def within(values: Mapping[str, Any], split: frozenset[str], images: int) -> dict[str, Any]:
    """Return the inputs on some images; fewer than asked for are repeated."""
    return {
        name: v.repeat(-(-images // len(v)), *(1 for _ in v.shape[1:]))[:images] if name in split else v
        for name, v in values.items()
    }
