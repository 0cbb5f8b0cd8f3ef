"""The processes of one reconstruction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, TypeVar

from attrs import frozen

from qfunc.execution.distributed import gather_counts, propagate_errors
from qfunc.reconstruction.layout import Layout
from qfunc.reconstruction.sharing.parts import Parts

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Value = TypeVar("Value")


@frozen(eq=False)
class Shared:
    """The images that processes share, the layouts of the values, and the group; None for this process alone.

    All processes call `gather`, `of_first` and `total` in the same order, each with what it computed in `guard`.

    >>> Shared(Parts(((3,),)), {}, None).total([1.0, 2.0], "block")
    3.0
    """

    parts: Parts
    layout: Mapping[str, Layout]
    group: ProcessGroup | None

    @property
    def first(self) -> bool:
        """True in the process that reads and writes files."""
        return self.group is None or self.group.rank() == 0

    def guard(self) -> AbstractContextManager[None]:
        """Return a context whose exceptions the next gather of the other processes raises, too."""
        return propagate_errors(self.group)

    def gather(self, own: Value, name: str) -> list[Value]:
        """Return the values of all processes, in order of rank.

        Raises:
            CalibrationError: another process failed, or is elsewhere.
        """
        return gather_counts(own, 1, [name], self.group, "reconstruct")[0]

    def of_first(self, work: Callable[[], Value], name: str) -> Value:
        """Return what a function returns in the first process; it is not called in the others."""
        with self.guard():
            own = work() if self.first else None
        value: Value = self.gather(own, name)[0]  # type: ignore[assignment]
        return value

    def total(self, own: list[float], name: str) -> float:
        """Return the sum of the numbers of all processes, added one by one in order."""
        return reduce(add, (number for each in self.gather(own, f"unit {name}") for number in each), 0.0)
