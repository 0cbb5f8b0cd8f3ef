"""The report of `compare`: the quantization error of each tensor, as data, as tables, as a page."""

from __future__ import annotations

from attrs import field, frozen

from qfunc.analysis.explanation import Explanation
from qfunc.analysis.histogram import Histogram
from qfunc.analysis.metrics import Agreement, AgreementRow, decibels, sqnr_nan_lowest
from qfunc.analysis.report_format import HtmlReport, Section, page, section, table
from qfunc.analysis.svg_plots import Series, histogram_plot, scatter_plot

_HEAD = ("tensor", "kind", "slot", "depth", "SQNR, dB", "alone, dB", "cosine", "largest error", "clipped, %")


@frozen
class LayerError(AgreementRow):
    """One tensor: the simulation against the float network, as the ops that read the tensor get it.

    `slot` and `op` are those of its quantizer; `slot` is "" if it has none.  `depth` counts units from the inputs;
    a constant has the depth of its op.  `alone` compares Q(x) with x for the float x: the error of this quantizer
    alone.  `histogram` is None without a quantizer with static qparams.
    """

    tensor: str
    kind: str
    slot: str
    op: str
    depth: int
    source: str
    output: bool
    agreement: Agreement
    alone: Agreement | None
    histogram: Histogram | None = field(repr=False)

    def cells(self) -> tuple[str, ...]:
        """Return the row of a table."""
        alone = decibels(self.alone.sqnr if self.alone else None)
        clipped = "" if self.histogram is None else f"{100 * self.histogram.share:.3g}"
        figures = (decibels(self.sqnr), alone, f"{self.cosine:.6f}", f"{self.agreement.largest:.4g}", clipped)
        return (self.tensor, self.kind, self.slot or ("output" if self.output else ""), str(self.depth), *figures)


@frozen(repr=False)
class LayerErrors(HtmlReport):
    """The report of `compare`: `rows` by depth, then in the order of execution; `html` plots them, `repr` is one line."""

    target: str
    batches: int
    rows: tuple[LayerError, ...]
    explanation: Explanation

    @property
    def outputs(self) -> tuple[LayerError, ...]:
        """The rows of the model's outputs."""
        return tuple(r for r in self.rows if r.output)

    def worst(self, count: int = 5) -> tuple[LayerError, ...]:
        """Return the rows with the lowest SQNR, the lowest first."""
        return tuple(sorted(self.rows, key=sqnr_nan_lowest)[:count])

    def __repr__(self) -> str:
        return f"LayerErrors({self.target!r}, {len(self.rows)} tensors, {self.batches} batch{'es' * (self.batches != 1)})"

    def __str__(self) -> str:
        """Return a table as text."""
        return f"{self._title}\n{table(_HEAD, [r.cells() for r in self.rows], 220)}"

    def html(self) -> str:
        """Return a self-contained page: SQNR by depth, a table, a histogram of each quantized tensor, and `explain`."""
        intro = "Each tensor of the simulation against the float network, over all batches; SQNR in dB."
        parts = [
            section("SQNR by depth", scatter_plot(self._series(), "units from the input", "SQNR, dB")),
            Section("Tensors", _HEAD, tuple(r.cells() for r in self.rows)),
            section("Histograms", "".join(histogram_plot(r.tensor, r.histogram) for r in self.rows if r.histogram)),
            *self.explanation.sections(),
        ]
        return page(self._title, intro, parts)

    @property
    def _title(self) -> str:
        batches = f"{self.batches} batch{'es' * (self.batches != 1)}"
        return f"{self.target}: float against simulation, {len(self.rows)} tensors, {batches}"

    def _series(self) -> tuple[Series, ...]:
        activations = [r for r in self.rows if r.slot not in ("weight", "bias")]
        weights = [r for r in self.rows if r.slot == "weight"]
        quantizers = [(r.depth, r.alone.sqnr, r.tensor) for r in activations if r.alone is not None]
        return (
            Series("activations", tuple((r.depth, r.sqnr, r.tensor) for r in activations), joined=True),
            Series("activations, the quantizer alone", tuple(quantizers)),
            Series("weights", tuple((r.depth, r.sqnr, r.tensor) for r in weights)),
        )
