"""The report of `sensitivity`: the loss of each site, as data, as a table, as a page."""

from __future__ import annotations

from attrs import frozen

from qfunc.analysis.metrics import Agreement, AgreementRow, decibels, sqnr_nan_lowest
from qfunc.analysis.report_format import HtmlReport, Section, page, section, table
from qfunc.analysis.svg_plots import Series, scatter_plot

_HEAD = ("site", "slot", "of op", "format", "SQNR, dB", "MSE", "cosine")


@frozen
class SiteLoss(AgreementRow):
    """One site quantized alone: the agreement of the model's outputs with the float network's.

    `ops` is the number of ops that are rerun for it in each batch.
    """

    site: str
    slot: str
    op: str
    format: str
    ops: int
    agreement: Agreement

    def cells(self) -> tuple[str, ...]:
        """Return the row of a table."""
        figures = decibels(self.sqnr), f"{self.mse:.4g}", f"{self.cosine:.6f}"
        return (self.site, self.slot, self.op, self.format, *figures)


@frozen(repr=False)
class SiteLosses(HtmlReport):
    """The report of `sensitivity`: `rows` in graph order.  `naive_ops` is the number of ops of a whole pass per site.

    `repr` is one line, `print` shows a table, `html` returns a page.
    """

    target: str
    batches: int
    rows: tuple[SiteLoss, ...]
    naive_ops: int

    @property
    def ops(self) -> int:
        """The number of ops rerun over all sites for one batch."""
        return sum(r.ops for r in self.rows)

    def worst(self, count: int = 5) -> tuple[SiteLoss, ...]:
        """Return the sites with the lowest SQNR, the lowest first."""
        return tuple(sorted(self.rows, key=sqnr_nan_lowest)[:count])

    def __repr__(self) -> str:
        return f"SiteLosses({self.target!r}, {len(self.rows)} sites, {self.batches} batch{'es' * (self.batches != 1)})"

    def __str__(self) -> str:
        """Return a table, the worst first."""
        return f"{self._title}\n{table(_HEAD, [r.cells() for r in self.worst(len(self.rows))], 220)}"

    def html(self) -> str:
        """Return a self-contained page: a plot in graph order, and a table with the worst site first."""
        kinds = {"activations": ("input", "output"), "weights": ("weight",), "biases": ("bias",)}
        series = tuple(
            Series(name, tuple((i, r.sqnr, r.site) for i, r in enumerate(self.rows) if r.slot in slots))
            for name, slots in kinds.items()
        )
        ranked = tuple(r.cells() for r in self.worst(len(self.rows)))
        parts = [
            section("SQNR of the outputs, one site quantized", scatter_plot(series, "sites in graph order", "SQNR, dB")),
            Section("Sites, the most costly first", _HEAD, ranked),
        ]
        return page(self._title, f"{self.ops} ops were rerun for each batch, instead of {self.naive_ops}.", parts)

    @property
    def _title(self) -> str:
        batches = f"{self.batches} batch{'es' * (self.batches != 1)}"
        return f"{self.target}: one of {len(self.rows)} sites quantized at a time, {batches}"
