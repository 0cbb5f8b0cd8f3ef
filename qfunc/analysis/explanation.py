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


@frozen(repr=False)
class Explanation(HtmlReport):
    """The report of `explain`.  `repr` is one line, `print` shows tables, `html` returns a page.

    Attributes:
        target: The name of the target.
        sites: The quantized tensors.
        rules: Rules by their index in the target.
        floats: The ops that compute in float, with reasons.
        misses, unmatched: Fusions and rewrites that almost matched, with reasons.
    """

    target: str
    sites: tuple[SiteRow, ...]
    rules: tuple[tuple[int, str], ...]
    floats: tuple[FloatRow, ...]
    misses: tuple[tuple[str, str, str], ...] = field(default=())
    unmatched: tuple[tuple[str, str, str], ...] = field(default=())

    def sections(self) -> tuple[Section, ...]:
        """Return the tables: quantized tensors, rules, float ops, and fusions and rewrites that almost matched."""
        names, float_names = [f.name for f in fields(SiteRow) if f.repr], [f.name for f in fields(FloatRow)]
        head = tuple("of op" if n == "op" else n.replace("_", " ") for n in names)
        rows = tuple([str(getattr(s, n)) for n in names] for s in self.sites)
        floats = tuple([str(getattr(f, n)) for n in float_names] for f in self.floats)
        return (
            Section(f"{self.target}: {len(self.sites)} quantized tensors", head, rows),
            Section("rules", ("rule", "selects"), tuple((str(i), text) for i, text in self.rules)),
            Section("in float", tuple(float_names), floats),
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
