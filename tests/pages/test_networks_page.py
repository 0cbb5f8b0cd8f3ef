"""docs/networks.md: its program prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/networks.md").read_text()


def test_the_program_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    program, printed = (re.search(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) for kind in ("python", "text"))
    assert program is not None
    assert printed is not None
    exec(compile(program[1], "docs/networks.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out == printed[1]
