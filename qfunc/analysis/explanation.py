"""The report of explain: one row a site, one row a float op."""

from __future__ import annotations

import os
from pathlib import Path

from attrs import field, fields, frozen

from qfunc.analysis.histogram import Histogram
from qfunc.analysis.report_format import Section, page, section, table, write_page
from qfunc.analysis.svg_plots import histogram_plot


@frozen
class SiteRow:
    """One quantized tensor: what holds it, which rule of the target asked, where the user's code made it.

    `histogram` is that of a weight; activations need batches: `compare`.
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
    """One op that computes in float: what it is, why, where the user's code calls it."""

    op: str
    kind: str
    why: str
    source: str


@frozen
class Explanation:
    """The sites, the rules that put them there (by their index in the target), the ops in float with the
    reason, the fusions that almost were, and what almost matched the pattern of a rewrite; `print` shows tables, `html`
    a page.
    """

    target: str
    sites: tuple[SiteRow, ...]
    rules: tuple[tuple[int, str], ...]
    floats: tuple[FloatRow, ...]
    misses: tuple[tuple[str, str, str], ...] = field(default=())
    unmatched: tuple[tuple[str, str, str], ...] = field(default=())

    def sections(self) -> tuple[Section, ...]:
        """The tables: quantized tensors, rules, what is in float, what was nearly fused or rewritten."""
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

    def __str__(self) -> str:
        """Tables as text."""
        shown = [s for s in self.sections() if s.rows]
        return "\n\n".join(f"{s.title}\n{table(s.head, s.rows, 220)}" for s in shown)

    def html(self) -> str:
        """The tables as one page, and a histogram of each weight with its clipping range."""
        drawn = "".join(histogram_plot(s.tensor, s.histogram) for s in self.sites if s.histogram)
        intro = "Each tensor with the rule that asked. `compare` draws activations, and what quantization costs."
        return page(f"{self.target}: what was quantized", intro, (*self.sections(), section("Weights", drawn)))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page.

        Raises:
            VerifyError: the path is a directory.
        """
        return write_page(path, self.html())
