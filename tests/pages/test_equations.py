"""Every algorithm and format has a row: its equation's source, an oracle, the numbers compared; the docs show it."""

import pytest

from qfunc import estimators, functions, specs
from tests.equations.render import GROUPS, PAGE, START, line
from tests.equations.row import Row

ROWS = [row for _, rows in GROUPS for row in rows]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_ours_equals_the_oracle_and_the_docs_say_so(row: Row) -> None:
    """Rewrite the docs by `python -m tests.equations.render`."""
    compared = row.check()
    assert compared > 0
    assert line(row, compared) in PAGE.read_text()


def test_nothing_is_without_a_row() -> None:
    """Estimators, functions, formats and ready schemes by their public names, and every rounding."""
    named = {row.name.split(",")[0] for row in ROWS}
    public = {*estimators.__all__, *functions.__all__} - {"WithGradient"}  # the class that with_gradient makes
    for module in (specs, specs.formats):
        public |= {name for name in module.__all__ if isinstance(getattr(module, name), specs.Float | specs.Scheme)}
    public |= {f"rounding {mode}" for mode in specs.ROUNDINGS}
    assert public - named == set()


def test_the_docs_show_no_other_rows() -> None:
    """A row that is gone is gone from the table."""
    shown = [text for text in PAGE.read_text().partition(START)[2].splitlines() if text.startswith("| `")]
    assert len(shown) == len(ROWS)
