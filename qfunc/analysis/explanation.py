"""The report of `explain`: one row per site, and one row per float op."""

from __future__ import annotations

from attrs import field, fields, frozen

from qfunc.analysis.histogram import Histogram
from qfunc.analysis.report_format import HtmlReport, Section, page, section, table
from qfunc.analysis.svg_plots import histogram_plot


@frozen
class SiteRow:
    """One quantized tensor: its format and qparams, the target's rule that selects it, and its line in the user's code.

    `histogram` is that of a weight; histograms of activations need batches: see `compare`.
    """

    tensor: str
    slot: str
    op: str
    format: str
    shared: str
    scale: str
    zero_point: str
    rule: int
    source: str
    histogram: Histogram | None = field(default=None, repr=False)


@frozen
class FloatRow:
    """One op that computes in float: its kind, the reason, and its line in the user's code."""

    op: str
    kind: str
    why: str
    source: str


@frozen
class OverflowRow:
    """One op whose sums of products may not fit its accumulator, by its weights and the ranges of its codes.

    `channels`: the output channels at risk, "3 of 16".  `largest`: the largest absolute value that one of them can have.
    A product of two activations has no weights: its row has the length from which a sum may overflow.
    """

    op: str
    accumulator: str
    channels: str
    largest: str
    limit: str
    source: str


@frozen
class HostRow:
    """One op that the host of the chip runs: its kind, the reason, and its line in the user's code."""

    op: str
    kind: str
    why: str
    source: str


@frozen(repr=False)
class Explanation(HtmlReport):
    """The report of `explain`.  `repr` is one line, `print` shows tables, `html` returns a page.

    Attributes:
        target: The name of the target.
        sites: The quantized tensors.
        rules: Rules by their index in the target.
        floats: The ops that compute in float, with reasons.
        misses, unmatched: Fusions and rewrites that almost matched, with reasons.
        overflows: The ops whose accumulators may overflow, if the model is calibrated.
        host: The software of the chip's host, or "".
        hosted: The ops that the host runs, if the model is calibrated.
    """

    target: str
    sites: tuple[SiteRow, ...]
    rules: tuple[tuple[int, str], ...]
    floats: tuple[FloatRow, ...]
    misses: tuple[tuple[str, str, str], ...] = field(default=())
    unmatched: tuple[tuple[str, str, str], ...] = field(default=())
    overflows: tuple[OverflowRow, ...] = field(default=())
    host: str = ""
    hosted: tuple[HostRow, ...] = field(default=())

    def sections(self) -> tuple[Section, ...]:
        """Return the tables: tensors, rules, float ops, ops on the host, overflows, near misses of fusions and rewrites."""
        names, float_names = [f.name for f in fields(SiteRow) if f.repr], [f.name for f in fields(FloatRow)]
        head = tuple("of op" if n == "op" else n.replace("_", " ") for n in names)
        rows = tuple([str(getattr(s, n)) for n in names] for s in self.sites)
        floats = tuple([str(getattr(f, n)) for n in float_names] for f in self.floats)
        overflow_names = [f.name for f in fields(OverflowRow)]
        overflows = tuple([str(getattr(r, n)) for n in overflow_names] for r in self.overflows)
        host_names = [f.name for f in fields(HostRow)]
        hosted = tuple([str(getattr(r, n)) for n in host_names] for r in self.hosted)
        return (
            Section(f"{self.target}: {len(self.sites)} quantized tensors", head, rows),
            Section("rules", ("rule", "selects"), tuple((str(i), text) for i, text in self.rules)),
            Section("in float", tuple(float_names), floats),
            Section(f"on the host, {self.host}", tuple(host_names), hosted),
            Section("may overflow", tuple(overflow_names), overflows),
            Section("not fused", ("op", "with", "why"), self.misses),
            Section("not rewritten", ("op", "as", "why"), self.unmatched),
        )

    def __repr__(self) -> str:
        return f"Explanation({self.target!r}, {len(self.sites)} quantized tensors, {len(self.floats)} float ops)"

    def __str__(self) -> str:
        """Return the tables as text."""
        sections = [s for s in self.sections() if s.rows]
        return "\n\n".join(f"{s.title}\n{table(s.head, s.rows, 220)}" for s in sections)

    def html(self) -> str:
        """Return the tables as one page, and a histogram of each weight with its clipping range."""
        plots = "".join(histogram_plot(s.tensor, s.histogram) for s in self.sites if s.histogram)
        intro = "Each tensor and its rule. `compare` plots activations and quantization errors."
        return page(f"{self.target}: what was quantized", intro, (*self.sections(), section("Weights", plots)))
