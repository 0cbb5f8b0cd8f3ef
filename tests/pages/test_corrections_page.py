"""docs/corrections.md: its program runs and prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages.printed import differences

PAGE = (Path(__file__).parents[2] / "docs/corrections.md").read_text()


def test_the_program_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    programs, printed = (re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) for kind in ("python", "text"))
    assert len(programs) == len(printed) == 1
    exec(compile(programs[0], "docs/corrections.md", "exec"), {"__name__": "page"})
    assert differences(capsys.readouterr().out, printed[0]) == ""
