"""The report of `sweep`: a row for each target, and those that no other target beats."""

from __future__ import annotations

from attrs import field, frozen

from qfunc.analysis.report_format import HtmlReport, Section, page, section, table
from qfunc.analysis.svg_plots import Series, scatter_plot

NO_LOWERING = "no files: the target has no lowering"
"""The reason of a row that is whole although it has no files."""


@frozen
class SweepRow:
    """What one target gives.

    Attributes:
        name: The name of the row.
        value: The mean of the metric; without a metric, the SQNR of the outputs in dB. None if the target refuses the model.
        integer: The share of multiply-accumulates on integers.
        size: The bytes of the artifact without its report; None if the target has no files, or refuses the model.
        seconds: The least time of one batch on the target's runtime; None if it was not measured.
        why: What the target refuses, or why nothing was measured; "" if all was.
    """

    name: str
    value: float | None = None
    integer: float | None = None
    size: int | None = None
    seconds: float | None = None
    why: str = ""

    def beats(self, other: SweepRow) -> bool:
        """Return True if this row is at least as good in every column that both have, and better in one.

        >>> SweepRow("a", 0.9, 1.0, 100).beats(SweepRow("b", 0.8, 1.0, 100))
        True
        """
        pairs = [(self.value, other.value)] if self.value is not None and other.value is not None else []
        costs = ((self.size, other.size), (self.seconds, other.seconds))
        pairs += [(-a, -b) for a, b in costs if a is not None and b is not None]
        return bool(pairs) and all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


@frozen(repr=False)
class Sweep(HtmlReport):
    """The report of `sweep`.  `repr` is one line, `print` shows the table, `html` returns a page with a plot.

    Attributes:
        metric: The name of the metric; "SQNR, dB" without one.
        best: The metric of the float network, or None.
        size: The bytes of its parameters and buffers.
        rows: The rows, in the order of the targets.
    """

    metric: str
    best: float | None
    size: int
    rows: tuple[SweepRow, ...] = field(repr=False)

    def __getitem__(self, name: str) -> SweepRow:
        """Return the row of a name.

        Raises:
            KeyError: there is none.
        """
        found = {row.name: row for row in self.rows}
        return found[name]

    @property
    def front(self) -> tuple[SweepRow, ...]:
        """The rows with a file that no other row beats, by increasing size: the Pareto front of value, size and seconds."""
        whole = [row for row in self.rows if row.value is not None and row.size is not None]
        best = [row for row in whole if not any(other.beats(row) for other in whole)]
        return tuple(sorted(best, key=lambda row: (row.size or 0, -(row.value or 0.0))))

    def sections(self) -> tuple[Section, ...]:
        """Return the table, and the plot of value over size."""
        timed = ("ms",) if any(row.seconds is not None for row in self.rows) else ()
        head = ("target", self.metric, "on integers", "KiB", *timed, "front", "not measured")
        front = self.front
        rows = tuple(_cells(row, row in front, bool(timed)) for row in self.rows)
        return Section("Targets", head, rows), section("Value and size", self._plot())

    def _plot(self) -> str:
        front = self.front
        others = [r for r in self.rows if r not in front and r.value is not None and r.size is not None]
        series = (Series("front", tuple(map(_point, front)), joined=True), Series("others", tuple(map(_point, others))))
        return scatter_plot(series, "KiB", self.metric) if front else ""

    @property
    def _title(self) -> str:
        of = "" if self.best is None else f", float {self.best:.4g}"
        return f"{len(self.rows)} targets: {self.metric}{of}; float parameters {self.size / 1024:,.1f} KiB"

    def __repr__(self) -> str:
        return f"Sweep({self.metric!r}, {len(self.rows)} targets)"

    def __str__(self) -> str:
        """Return the table as text."""
        shown = self.sections()[0]
        return f"{self._title}\n{table(shown.head, shown.rows, 200)}"

    def html(self) -> str:
        """Return a self-contained page."""
        intro = (
            "A target is on the front if each other one has a worse value, a larger file or more time. "
            "The report in an artifact is not counted."
        )
        return page(self._title, intro, self.sections())


def _point(row: SweepRow) -> tuple[float, float, str]:
    return (row.size or 0) / 1024, row.value or 0.0, row.name


def _cells(row: SweepRow, first: bool, timed: bool) -> tuple[str, ...]:
    value = "" if row.value is None else f"{row.value:.4g}"
    integer = "" if row.integer is None else f"{row.integer:.1%}"
    size = "" if row.size is None else f"{row.size / 1024:,.1f}"
    seconds = ("" if row.seconds is None else f"{1e3 * row.seconds:.3g}",) if timed else ()
    return (row.name, value, integer, size, *seconds, "*" if first else "", row.why)
