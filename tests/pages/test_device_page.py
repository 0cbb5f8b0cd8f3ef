"""docs/device.md: its programs print what the page says, and its table is that of check.py."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from qfunc.proof.check import main
from qfunc.specs import cpus

PAGE = (Path(__file__).parents[2] / "docs/device.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_programs_print_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for program, printed in zip(blocks("python"), blocks("text"), strict=True):
        exec(compile(program, "docs/device.md", "exec"), names)
        assert capsys.readouterr().out == printed
    main(names["folder"])
    found, shown = (text.splitlines()[2:9] for text in (capsys.readouterr().out, blocks("console")[0]))
    assert [line[:22] for line in found] == [line[:22] for line in shown]  # this processor may compute other codes
    assert json.loads((names["folder"] / "proof.json").read_text())["cpu"] == "arm64-dotprod"


def test_the_processors_are_named_and_the_checker_is_as_short_as_it_says() -> None:
    named = set(re.findall(r"`((?:arm64|x86-64|wasm)[\w-]*)`", PAGE))
    assert named == {str(cpu) for cpu in cpus.EVERY}
    checker = Path(sys.modules[main.__module__].__file__ or "")
    assert len(checker.read_text().splitlines()) < 200
    assert "one file of less than 200 lines" in PAGE
