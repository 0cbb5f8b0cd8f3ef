"""Tables as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], width: int = 160) -> str:
    """A plain-text table; columns whose cells are all numbers are set flush right.

    >>> print(table(("op", "bits"), [("conv", "8")]))
     op     bits
    ─────────────
     conv      8
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    rows = [[str(c) for c in row] for row in rows]
    made = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=True)
    for index, title in enumerate(head):
        numeric = rows and all(_is_number(row[index]) for row in rows)
        made.add_column(title, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(made, markup=False)
    return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n"))


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").replace("%", "").strip("-").isdigit()
