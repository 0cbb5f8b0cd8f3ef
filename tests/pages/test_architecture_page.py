"""ARCHITECTURE.md: its program prints what the page says, and every file that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_program_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    (program,), (printed,) = blocks("python"), blocks("text")
    exec(compile(program, "ARCHITECTURE.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w/]+\.py)`", PAGE))))
def test_a_file_that_it_names_exists(name: str) -> None:
    bases = (ROOT, ROOT / "qfunc", ROOT / "tests")
    assert "/" not in name or any((base / name).is_file() for base in bases)
