"""The table of docs/target_table.md is what the targets say."""

import pytest

from qfunc import targets
from tests.pages.targets_page import END, PAGE, START, line


@pytest.mark.parametrize("name", targets.__all__)
def test_the_row_of_a_target_is_what_it_says(name: str) -> None:
    """Rewrite the page by `python -m tests.pages.targets_page`."""
    assert line(name) in PAGE.read_text()


def test_the_page_shows_no_other_targets() -> None:
    table = PAGE.read_text().partition(START)[2].partition(END)[0]
    assert sum(text.startswith("| `targets.") for text in table.splitlines()) == len(targets.__all__)
