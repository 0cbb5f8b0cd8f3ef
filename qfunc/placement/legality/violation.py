"""Violations: the parts of a plan that a target refuses, and the error that lists them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

from qfunc.errors import SpecError
from qfunc.specs import Target

_LISTED = 5
"""The maximum number of reasons in a message, and of places for each reason."""
WITHOUT_FILE = " To simulate it without a file, use attrs.evolve(target, lowering=None)."
"""The remedy for what a file cannot hold."""


@frozen
class Violation:
    """One refusal: the op and tensor, and the parts found, wanted and do of its message."""

    op: str
    slot: str
    tensor: str
    found: str
    wanted: str
    do: str

    @property
    def place(self) -> str:
        """The op, and the tensor if a tensor is refused."""
        return f"op {self.op!r}" + (f", {self.slot} {self.tensor!r}" if self.slot else "")


def raise_violations(found: Sequence[Violation], target: Target) -> None:
    """Raise one error for all violations, if there are any.

    Raises:
        SpecError: the message names the first ops and tensors, the vendor's rules and the remedies.
    """
    if not found:
        return
    by_reason: dict[tuple[str, str, str], list[Violation]] = {}
    for violation in found:
        by_reason.setdefault((violation.found, violation.wanted, violation.do), []).append(violation)
    if len(by_reason) == 1:
        refused, wanted, do = next(iter(by_reason))
        raise SpecError(where=f"target {target.name!r}, {_places(found)}", found=refused, wanted=wanted, do=do)
    lines = [f"{_places(group)}: found {refused}, wanted {wanted}. {do}" for (refused, wanted, do), group in by_reason.items()]
    rest = [f"and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
    raise SpecError(
        where=f"target {target.name!r}",
        found=f"{len(found)} violations, for {len(by_reason)} reasons",
        wanted="none",
        do="\n  ".join(["Resolve each:", *lines[:_LISTED], *rest]),
    )


def _places(found: Sequence[Violation]) -> str:
    more = [f"and {len(found) - _LISTED} more"] if len(found) > _LISTED else []
    return "; ".join([*(v.place for v in found[:_LISTED]), *more])


def without_repetitions(each: Iterable[Violation]) -> tuple[Violation, ...]:
    """Return the violations in order, and each tensor once for each reason."""
    found: dict[tuple[str, str, str], Violation] = {}
    for violation in each:
        found.setdefault((violation.tensor or violation.op, violation.found, violation.wanted), violation)
    return tuple(found.values())
