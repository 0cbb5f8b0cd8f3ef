"""The report of `measure_placement`: what each unit costs on integers and in float, and the placement of least time."""

from __future__ import annotations

from attrs import field, frozen

from qfunc.analysis.report_format import HtmlReport, Section, page, table
from qfunc.diagnosis.plan import Plan
from qfunc.diagnosis.unit_times import UnitTime
from qfunc.specs import Target

SHOWN = 3
"""The paths of a class of units that a row shows."""


@frozen
class PlacementTime:
    """One placement of the whole network, as measured.

    Attributes:
        name: "as given", "all rules", "measured" or "in float".
        plan: The plan that makes it; None for the network in float.
        seconds: The least time of the example inputs.
        share: The share of the multiply-accumulates on integers, in [0, 1].
    """

    name: str
    plan: Plan | None
    seconds: float
    share: float


@frozen(repr=False)
class MeasuredPlacement(HtmlReport):
    """The report of `measure_placement`.  `repr` is one line, `print` shows tables, `html` returns a page.

    Attributes:
        target: The name of the target.
        rows: The classes of equal units.
        times: The placements of the whole network, as measured, the fastest first.
        plan: What makes the fastest placement that has products on integers.
    """

    target: str
    rows: tuple[UnitTime, ...] = field(repr=False)
    times: tuple[PlacementTime, ...]
    plan: Plan

    def edit(self, target: Target) -> Target:
        """Return the target with the placement of `plan`."""
        return self.plan.target(target)

    @property
    def ratio(self) -> float:
        """The time of `plan` over the time of the network in float."""
        return self._seconds(self.plan) / self._seconds(None)

    @property
    def remark(self) -> str:
        """What a user would want to know before using `edit`: that float is as fast; or ""."""
        if self.ratio <= 1:
            return ""
        return (
            f"in float this network takes {1 / self.ratio:.2g} of the time: on this machine nothing is faster on integers than "
            "the whole network in float"
        )

    def _seconds(self, plan: Plan | None) -> float:
        return next(t.seconds for t in self.times if t.plan == plan)

    def sections(self) -> tuple[Section, ...]:
        """Return the tables: placements of the whole network, units."""
        plain = self._seconds(None)
        whole = tuple(
            (t.name, f"{1e3 * t.seconds:.4g}", f"{t.seconds / plain:.2f}", f"{t.share:.0%}", repr(t.plan) if t.plan else "")
            for t in self.times
        )
        order = sorted(self.rows, key=lambda row: -row.gain * len(row.paths))
        units = tuple(self._cells(row) for row in order)
        return (
            Section("Whole network", ("placement", "ms", "of float", "on integers", "edit"), whole),
            Section("Units", ("ops", "kind", "inputs", "integers, us", "float, us", "edit"), units),
        )

    def _cells(self, row: UnitTime) -> tuple[str, ...]:
        more = [f"and {len(row.paths) - SHOWN} more"] if len(row.paths) > SHOWN else []
        moved = "in float" if self.plan.floats.issuperset(row.paths) else ""
        sizes = ", ".join("x".join(map(str, size)) for size in row.sizes)
        return (", ".join([*row.paths[:SHOWN], *more]), row.kind, sizes, *map(_us, (row.integers, row.floats)), moved)

    @property
    def _title(self) -> str:
        return f"{self.target}: {self.ratio:.2f} of the time in float, by {self.plan!r}"

    def __repr__(self) -> str:
        return f"MeasuredPlacement({self.target!r}, {self.ratio:.2f} of the time in float)"

    def __str__(self) -> str:
        """Return the tables as text."""
        tables = (f"{s.title}\n{table(s.head, s.rows, 120)}" for s in self.sections() if s.rows)
        return "\n\n".join((self._title, *tables, *([self.remark] if self.remark else [])))

    def html(self) -> str:
        """Return a self-contained page."""
        intro = (
            "The time of a unit is that of a network of this unit alone, without the conversions at its ends. The placements "
            f"of the whole network were measured in turns. {self.remark}"
        )
        return page(self._title, intro, self.sections())


def _us(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e6 * max(0.0, seconds):.4g}"
