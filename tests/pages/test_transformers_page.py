"""docs/transformers.md: its programs run and print what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/transformers.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names
def test_the_programs_print_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    names = {"__name__": "page"}
    for program, printed in zip(blocks("python"), blocks("text"), strict=True):
        exec(compile(program, "docs/transformers.md", "exec"), names)
        assert capsys.readouterr().out == printed
