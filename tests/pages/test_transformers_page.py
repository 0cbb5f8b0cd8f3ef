"""docs/transformers.md: its program runs and prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/transformers.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names
def test_the_program_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    (program,), (printed,) = blocks("python"), blocks("text")
    exec(compile(program, "docs/transformers.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out == printed
