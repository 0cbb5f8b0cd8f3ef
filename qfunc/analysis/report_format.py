"""Format tables as text, and reports as HTML pages."""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from attrs import frozen

from qfunc.errors import VerifyError

__all__ = ["HtmlReport", "Section", "fragment", "page", "section", "write_page"]


_STYLE = """
body{font:14px/1.5 system-ui,sans-serif;color:#1c2530;background:#fff;max-width:1000px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;font-size:12px}
.wide{overflow-x:auto}th,td{text-align:left;padding:2px 10px 2px 0;border-bottom:1px solid #e3e7ec;white-space:nowrap}
th{border-bottom:2px solid #9aa5b1}td.n{text-align:right;font-variant-numeric:tabular-nums}
figure{display:inline-block;margin:0 12px 12px 0}figcaption{font-size:12px;max-width:420px;overflow-wrap:anywhere}
svg{max-width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:#4a5663}.grid{stroke:#e3e7ec}.range{fill:#dce8f5}
"""


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


def section(title: str, body: str) -> Section:
    """Return a section with an HTML body."""
    return Section(title, body=body)


def page(title: str, intro: str, sections: Iterable[Section]) -> str:
    """Return a whole page; texts are escaped, and empty sections are omitted.

    >>> page("a < b", "", [])[:67]
    '<!doctype html>\\n<html lang="en"><head><meta charset="utf-8"><title>'
    """
    shown = "\n".join(_section(s) for s in sections if s.rows or s.body)
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
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
    """Return a plain-text table; columns of numbers are right-aligned.

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
        text_table.add_column(title, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        text_table.add_row(*row)
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(text_table, markup=False)
    return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n"))


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").replace("%", "").strip("-").isdigit()
