"""docs/exactness.md: its programs run, one after the other, and print what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from qfunc.specs import cpus
from qfunc.targets.onnxruntime.target import onnxruntime

PAGE = (Path(__file__).parents[2] / "docs/exactness.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_programs_print_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for program, printed in zip(blocks("python"), blocks("text"), strict=True):
        exec(compile(program, "docs/exactness.md", "exec"), names)
        assert capsys.readouterr().out == printed


def test_the_processors_are_those_of_the_target() -> None:
    rows = re.findall(r"^\| ([a-z0-9-]+) \| .* \| \d \|$", PAGE, re.MULTILINE)
    builds = {str(build.cpu) for build in onnxruntime.runtime.builds}
    assert {*rows, str(cpus.x86_64_vnni)} == builds == {str(cpu) for cpu in cpus.EVERY}
