"""docs/data.md: its programs run and print what the page says, that for several processes in two of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qfunc.execution import stored_statistics
from tests.pages.printed import differences
from tests.pages.test_transformers_page import blocks

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/data.md").read_text()
SHARDS, LOADER, WEBDATASET, DATASETS, RANKS, RESUMED = zip(blocks(PAGE, "python"), blocks(PAGE, "text"), strict=True)
# Streams of tar files that are not read to their end are closed by the collector of garbage.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """A function that runs programs of the page after the first one, and compares what they print."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    names: dict[str, Any] = {"__name__": "page"}

    def run(*programs: tuple[str, str]) -> None:
        for program, printed in (SHARDS, *programs):
            exec(compile(program, "docs/data.md", "exec"), names)
            assert differences(capsys.readouterr().out, printed) == ""

    return run


def test_loaders_and_a_run_that_goes_on(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_statistics, "INTERVAL", 0.0)
    page(LOADER, RESUMED)


def test_webdataset(page: Any) -> None:
    pytest.importorskip("webdataset")
    page(WEBDATASET)


def test_hugging_face_datasets(page: Any) -> None:
    pytest.importorskip("datasets")
    page(DATASETS)


def test_two_processes(page: Any, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    pytest.importorskip("webdataset")
    page()
    program = tmp_path / "calibrate.py"
    program.write_text(RANKS[0])
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program)],
            cwd=tmp_path,
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert differences(outputs[0], RANKS[1]) == outputs[1] == ""
