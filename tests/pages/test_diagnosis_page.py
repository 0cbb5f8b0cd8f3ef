"""docs/diagnosis.md: its program runs and prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/diagnosis.md").read_text()


def test_the_program_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    programs, printed = (re.findall(rf"^```{k}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) for k in ("python", "text"))
    names = {"__name__": "page"}
    for program, text in zip(programs, printed, strict=True):
        exec(compile(program, "docs/diagnosis.md", "exec"), names)
        assert capsys.readouterr().out == text
