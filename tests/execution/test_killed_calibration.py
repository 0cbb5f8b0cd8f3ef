"""A calibration whose process is killed goes on with the same bits; no batch counts twice, none is lost."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.execution.killed import BATCHES, main
from tests.processes import exit_codes
from tests.transforms.checks import same_state

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")


def run(folder: Path, where: str, ranks: int = 1) -> list[int | None]:
    """Return the exit codes of the processes; all end when the last one failed, as with torchrun."""
    (folder / "meet").unlink(missing_ok=True)
    return exit_codes(main, [(str(folder), where, rank, ranks) for rank in range(ranks)])


def ran(folder: Path, rank: int = 0) -> list[int]:
    """The numbers of the batches that ran to their end, in order."""
    return [int(line) for line in (folder / f"ran-{rank}").read_text().split()]


@pytest.mark.thorough
def test_a_killed_process(tmp_path: Path) -> None:
    """Killed while a batch runs, while a file is written, and before and after it takes the place of the last one."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    assert run(whole, "uninterrupted") == [0]
    # The third run resumes after batch 3; its second write is that after batch 5, which runs again; the fourth is killed
    # right after the file of batch 6 is in place.
    for where in ("batch 4", "written 2", "replaced 2"):
        assert run(parts, where) == [-signal.SIGKILL], where
    assert run(parts, "never") == [0]
    assert same_state(load_file(parts / "found-0"), load_file(whole / "found-0"))
    assert ran(whole) == list(range(1, BATCHES + 1))
    assert ran(parts) == [1, 2, 3, 4, 5, 5, 6, *range(7, BATCHES + 1)]
    assert {p.name for p in parts.iterdir()} == {"ran-0", "found-0"}  # nor the half of a file


@pytest.mark.thorough
def test_one_of_two_killed_processes(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    assert run(whole, "uninterrupted", ranks=2) == [0, 0]
    assert run(parts, "batch 4", ranks=2)[1] == -signal.SIGKILL
    assert run(parts, "never", ranks=2) == [0, 0]
    for rank in (0, 1):
        assert same_state(load_file(parts / f"found-{rank}"), load_file(whole / f"found-{rank}"))
    assert ran(parts, 1) == [*range(1, BATCHES + 1)]
    assert sorted(set(ran(parts, 0))) == [*range(1, BATCHES + 1)]
    assert not list(parts.glob("*statistics*"))
