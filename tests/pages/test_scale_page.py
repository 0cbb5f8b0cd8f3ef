"""docs/scale.md: its program runs, here in one process of a group, and prints what the page says."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.pages.test_transformers_page import blocks

PAGE = (Path(__file__).parents[2] / "docs/scale.md").read_text()


def test_the_program_prints_what_the_page_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (program,), (printed,) = blocks(PAGE, "python"), blocks(PAGE, "text")
    exec(compile(program, "docs/scale.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out == printed
