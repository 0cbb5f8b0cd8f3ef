"""docs/training.md: its programs run and print what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/training.md").read_text()


def test_the_programs_print_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    programs, printed = (re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) for kind in ("python", "text"))
    assert len(programs) == len(printed) == 3
    names = {"__name__": "page"}  # each goes on where the one before ends
    for program, expected in zip(programs, printed, strict=True):
        exec(compile(program, "docs/training.md", "exec"), names)
        assert capsys.readouterr().out == expected
