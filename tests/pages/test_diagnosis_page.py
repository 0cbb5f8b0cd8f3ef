"""docs/diagnosis.md: its program runs and prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.onnxruntime_target import on_vnni
from tests.pages.printed import About, differences

PAGE = (Path(__file__).parents[2] / "docs/diagnosis.md").read_text()
REASON = "a ratio of float sums is rounded to a whole number"
RATIOS = (
    About(r"(\d+)% (?:channels|rounding|recovered)", 0.12, REASON),  # 1 of 9
    About(r"(\d+) times the median", 0.01, REASON),
)


@on_vnni  # others have weights of 7 bits, with other losses
@pytest.mark.thorough
def test_the_program_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    programs, printed = (re.findall(rf"^```{k}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) for k in ("python", "text"))
    names = {"__name__": "page"}
    for program, text in zip(programs, printed, strict=True):
        exec(compile(program, "docs/diagnosis.md", "exec"), names)
        assert differences(capsys.readouterr().out, text, *RATIOS) == ""
