"""Writes the table of docs/numerics.md: `python -m tests.equations.render`, which runs every row."""

from __future__ import annotations

from pathlib import Path

from tests.equations import blocks, estimators, formats, functions
from tests.equations.row import Row

PAGE = Path(__file__).parents[2] / "docs" / "numerics.md"
START, END = "<!-- table of equations: python -m tests.equations.render -->\n", "<!-- end of the table -->\n"
GROUPS = (
    ("Estimators", estimators.ROWS),
    ("Quantize functions", functions.ROWS),
    ("Formats, roundings, zero points", formats.ROWS),
    ("Schemes of blocks", blocks.ROWS),
)


def line(row: Row, compared: int) -> str:
    """One row of the table."""
    return f"| `{row.name}` | {row.source} | {row.oracle} | {compared:,} |\n"


def rendered() -> str:
    """The whole table."""
    text = ""
    for title, rows in GROUPS:
        text += f"| {title} | equation | oracle | numbers compared |\n|---|---|---|---|\n"
        text += "".join(line(row, row.check()) for row in rows) + "\n"
    return text


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(before + START + "\n" + rendered() + END + rest.partition(END)[2])
