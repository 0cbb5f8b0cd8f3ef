"""The report of `sensitivity`: the loss of each site, as data, as a table, as a page."""

from __future__ import annotations

import math
import os
from pathlib import Path

from attrs import frozen

from qfunc.analysis.metrics import Agreement, decibels
from qfunc.analysis.report_format import Section, fragment, page, section, table, write_page
from qfunc.analysis.svg_plots import Series, scatter_plot

_HEAD = ("site", "slot", "of op", "format", "SQNR, dB", "MSE", "cosine")


@frozen
class SiteLoss:
    """One site quantized alone: the agreement of the model's outputs with the float network's.

    `ops` is the number of ops that are rerun for it in each batch.
    """

    site: str
    slot: str
    op: str
    format: str
    ops: int
    agreement: Agreement

    @property
    def sqnr(self) -> float:
        """Signal to quantization noise ratio of the outputs in dB; infinite if nothing changed."""
        return self.agreement.sqnr

    @property
    def mse(self) -> float:
        """Mean squared error of the outputs."""
        return self.agreement.mse

    @property
    def cosine(self) -> float:
        """Cosine of the angle between the outputs."""
        return self.agreement.cosine

    def cells(self) -> tuple[str, ...]:
        """Return the row of a table."""
        figures = decibels(self.sqnr), f"{self.mse:.4g}", f"{self.cosine:.6f}"
        return (self.site, self.slot, self.op, self.format, *figures)


@frozen(repr=False)
class SiteLosses:
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
        return tuple(sorted(self.rows, key=lambda r: -math.inf if math.isnan(r.sqnr) else r.sqnr)[:count])

    def __repr__(self) -> str:
        return f"SiteLosses({self.target!r}, {len(self.rows)} sites, {self.batches} batches)"

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
        return page(self._title, f"{self.ops} ops ran again for each batch, in place of {self.naive_ops}.", parts)

    def _repr_html_(self) -> str:
        return fragment(self.html())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page.

        Raises:
            VerifyError: the path is a directory.
        """
        return write_page(path, self.html())

    @property
    def _title(self) -> str:
        return f"{self.target}: one of {len(self.rows)} sites quantized at a time, {self.batches} batches"


__all__ = ["SiteLosses", "SiteLoss"]
