"""docs/onnx_files.md: its programs print what the page says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pages.test_transformers_page import blocks

PAGE = (Path(__file__).parents[2] / "docs/onnx_files.md").read_text()


def test_the_programs_print_what_the_page_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for program, printed in zip(blocks(PAGE, "python"), blocks(PAGE, "text"), strict=True):
        exec(compile(program, "docs/onnx_files.md", "exec"), names)
        assert capsys.readouterr().out == printed
