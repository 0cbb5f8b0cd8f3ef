"""Format tables as text, and reports as HTML pages."""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from html import escape
from pathlib import Path

from attrs import frozen

from qfunc._collection import paused_collection
from qfunc.errors import VerifyError

_STYLE = """
body{font:14px/1.5 system-ui,sans-serif;color:#1c2530;background:#fff;max-width:1000px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;font-size:12px}
.wide{overflow-x:auto}th,td{text-align:left;padding:2px 10px 2px 0;border-bottom:1px solid #e3e7ec;white-space:nowrap}
th{border-bottom:2px solid #9aa5b1}td.n{text-align:right;font-variant-numeric:tabular-nums}
figure{display:inline-block;margin:0 12px 12px 0}figcaption{font-size:12px;max-width:420px;overflow-wrap:anywhere}
th[tabindex]{cursor:pointer}th[aria-sort=ascending]::after{content:" \\25b2"}th[aria-sort=descending]::after{content:" \\25bc"}
svg{max-width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:#4a5663}.grid{stroke:#e3e7ec}.range{fill:#dce8f5}
svg .name{paint-order:stroke;stroke:#fff;stroke-width:3px}
"""

_SCRIPT = """
document.querySelectorAll("th").forEach(head => {
  const sort = () => {
    const body = head.closest("table").tBodies[0], way = head.ariaSort === "ascending" ? -1 : 1;
    const text = row => row.cells[head.cellIndex].textContent;
    const number = row => text(row) === "inf" ? Infinity : parseFloat(text(row).replaceAll(",", ""));
    const numeric = [...body.rows].every(row => text(row) === "" || !isNaN(number(row)));
    const byNumber = (a, b) => isNaN(a) || isNaN(b) ? isNaN(a) - isNaN(b) : way * (a - b);
    const byText = (a, b) => way * a.localeCompare(b, "en", {numeric: true});
    body.append(...[...body.rows].sort((a, b) => numeric ? byNumber(number(a), number(b)) : byText(text(a), text(b))));
    for (const other of head.parentNode.cells) other.ariaSort = null;
    head.ariaSort = way === 1 ? "ascending" : "descending";
  };
  head.tabIndex = 0;
  head.onclick = sort;
  head.onkeydown = event => event.key === "Enter" ? sort() : null;
});
"""
"""Sorts a table by the column whose head is clicked: numbers by their values, texts with the numbers in them."""


@frozen
class Section:
    """A heading, then a table, then `body`, which is HTML."""

    title: str
    head: tuple[str, ...] = ()
    rows: tuple[Sequence[str], ...] = ()
    body: str = ""


class HtmlReport(ABC):
    """The base class of reports with a page: a notebook shows the page, and `save` writes it."""

    __slots__ = ()

    @abstractmethod
    def html(self) -> str:
        """Return a self-contained page."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page.

        Raises:
            VerifyError: the path is a directory.
        """
        return write_page(path, self.html())

    def _repr_html_(self) -> str:
        return fragment(self.html())


def name_of(function: object, default: str) -> str:
    """Return the name of a function for a report; `default` for a lambda and other values without a name.

    >>> name_of(len, "metric"), name_of(lambda outputs, batch: 0.5, "metric"), name_of(partial(len), "metric")
    ('len', 'metric', 'len')
    """
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__name__", type(function).__name__)
    return default if name == "<lambda>" else str(name)


def section(title: str, body: str) -> Section:
    """Return a section with an HTML body."""
    return Section(title, body=body)


def page(title: str, intro: str, sections: Iterable[Section]) -> str:
    """Return a whole page; texts are escaped, and empty sections are omitted.

    >>> page("a < b", "", [])[:67]
    '<!doctype html>\\n<html lang="en"><head><meta charset="utf-8"><title>'
    """
    shown = "\n".join(_section(s) for s in sections if s.rows or s.body)
    head = (
        f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style><script type="module">{_SCRIPT}</script>'
    )
    body = f"<h1>{escape(title)}</h1><p>{escape(intro)}</p>\n{shown}"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def fragment(text: str) -> str:
    """Return the body of a page with its style, for `_repr_html_` in a notebook; the style applies to this element only.

    >>> fragment(page("a < b", "Two numbers.", [])).partition("</style>")[2]
    '<h1>a &lt; b</h1><p>Two numbers.</p>\\n</div>'
    """
    style = "\n".join(line for line in _STYLE.split("\n") if not line.startswith("body"))
    body = text.partition("<body>")[2].rpartition("</body>")[0]
    return f'<div class="qfunc"><style>.qfunc{{{style}}}</style>{body}</div>'


def write_page(path: str | os.PathLike[str], text: str) -> Path:
    """Write a page atomically; create missing folders.

    Raises:
        VerifyError: the path is a directory.
    """
    place = Path(path).resolve()
    if place.is_dir():
        do = "Name a file: 'report.html'."
        raise VerifyError(where=f"save({str(path)!r})", found="a directory", wanted="a file to write", do=do)
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f".{place.name}-{secrets.token_hex(4)}")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, place)
    finally:
        draft.unlink(missing_ok=True)
    return place


def _section(part: Section) -> str:
    return f"<h2>{escape(part.title)}</h2>{_table(part) if part.rows else ''}{part.body}"


def _table(part: Section) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in part.head)
    rows = "".join(f"<tr>{''.join(_cell(c) for c in row)}</tr>" for row in part.rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(text: str) -> str:
    try:
        float(text.replace(",", ""))
    except ValueError:
        return f"<td>{escape(text)}</td>"
    return f'<td class="n">{escape(text)}</td>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], width: int = 160) -> str:
    """Return a plain-text table; columns of numbers are right-aligned, and a last column of text folds at `width`.

    >>> print(table(("op", "bits"), [("conv", "8")]))
     op     bits
    ─────────────
     conv      8
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    rows = [[str(c) for c in row] for row in rows]
    text_table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=True)
    for index, title in enumerate(head):
        numeric = rows and all(_is_number(row[index]) for row in rows)
        folds = index == len(head) - 1 and not numeric
        text_table.add_column(
            title, justify="right" if numeric else "left", no_wrap=not folds, overflow="fold" if folds else "ellipsis"
        )
    for row in rows:
        text_table.add_row(*row)
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as capture, paused_collection():
        console.print(text_table, markup=False, emoji=False, highlight=False)
    return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n"))


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").replace("%", "").strip("-").isdigit()
