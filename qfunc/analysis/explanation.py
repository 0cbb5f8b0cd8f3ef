"""The report of `explain`: one row per site, and one row per float op."""

from __future__ import annotations

import os
from textwrap import shorten
from typing import Any

from attrs import field, fields, frozen

from qfunc.analysis.histogram import Histogram
from qfunc.analysis.report_format import HtmlReport, Section, page, section, table
from qfunc.analysis.svg_plots import histogram_plot


@frozen
class SiteRow:
    """One quantized tensor: its line in the user's code, the target's rule that selects it, its format and qparams.

    The line of an input is that of the op that reads it.  `rule` is the index of the rule, -1 without one.  `histogram` is
    that of a weight; histograms of activations need batches: see `compare`.
    """

    source: str
    tensor: str
    slot: str
    op: str
    rule: int
    format: str
    shared: str
    scale: str
    zero_point: str
    histogram: Histogram | None = field(default=None, repr=False)


@frozen
class FloatRow:
    """One op that computes in float: its line in the user's code, its kind, and the reason."""

    source: str
    op: str
    kind: str
    why: str


@frozen
class OverflowRow:
    """One op whose sums of products may not fit its accumulator, by its weights and the ranges of its codes.

    `channels`: the output channels at risk, "3 of 16".  `largest`: the largest absolute value that one of them can have.
    A product of two activations has no weights: its row has the length from which a sum may overflow.
    """

    source: str
    op: str
    accumulator: str
    channels: str
    largest: str
    limit: str


@frozen
class HostRow:
    """One op that the host of the chip runs: its line in the user's code, its kind, and the reason."""

    source: str
    op: str
    kind: str
    why: str


@frozen(repr=False)
class Explanation(HtmlReport):
    """The report of `explain`.  `repr` is one line, `print` shows tables, `html` returns a page.

    Attributes:
        target: The name of the target.
        sites: The quantized tensors.
        rules: (index in the target, the ops that it selects) of the rules.
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
        rules = dict(self.rules)
        names = tuple(_HEADS.get(n, n) for n in _names(SiteRow))
        rows = tuple([*_cells(s)[:4], _rule(s.rule, rules), *_cells(s)[5:]] for s in self.sites)
        floats, hosted, overflows = (tuple(map(_cells, each)) for each in (self.floats, self.hosted, self.overflows))
        return (
            _section(f"{self.target}: {len(self.sites)} quantized tensors", names, rows),
            Section("rules", ("rule", "selects"), tuple((str(i), text) for i, text in self.rules)),
            _section("in float", _names(FloatRow), floats),
            _section(f"on the host, {self.host}", _names(HostRow), hosted),
            _section("may overflow", _names(OverflowRow), overflows),
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


_HEADS = {"op": "of op", "zero_point": "zero point"}
_WIDTH = 32
"""The length of a rule's name beside each tensor; the table of rules has the whole."""


def _names(row: type[Any]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(row) if f.repr)


def _section(title: str, head: tuple[str, ...], rows: tuple[list[str], ...]) -> Section:
    # Without the lines if no row has one, as in a model of torch's own modules.
    first = 0 if any(row[0] for row in rows) else 1
    return Section(title, head[first:], tuple(row[first:] for row in rows))


def _cells(row: Any) -> list[str]:
    # The source line first, relative to the current folder if it is inside.
    here = f"{os.getcwd()}{os.sep}"
    return [
        row.source.removeprefix(here),
        *(str(getattr(row, f.name)) for f in fields(type(row)) if f.repr and f.name != "source"),
    ]


def _rule(index: int, rules: dict[int, str]) -> str:
    return shorten(f"{index}: {rules[index]}", _WIDTH, placeholder=" ...") if index in rules else ""
