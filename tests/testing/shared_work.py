"""What processes of one group share of the fuzzer and of check_each_kind, or one process does alone."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from qfunc import targets
from qfunc.errors import QfuncError
from qfunc.testing import check_each_kind
from qfunc.testing.fuzz import campaign as fuzz
from qfunc.testing.fuzz.__main__ import main
from qfunc.testing.fuzz.outcome import Outcome

RANKS = 2
SEEDS = range(40, 51)
BAD = {
    41: Outcome("mismatch", "verify", message="mismatch: 3 of 9 elements differ, first at conv1, by 2 LSB"),
    42: Outcome("raw error", "deploy", "KeyError", "'b'"),
    44: Outcome("mismatch", "verify", message="mismatch: 8 of 9 elements differ, first at conv7, by 1 LSB"),
    45: Outcome("refused", "deploy", "DeployError", "no roll", "roll"),
    47: Outcome("raw error", "deploy", "KeyError", "'a'"),
    50: Outcome("wrong file", "run", "RuntimeError", "failed to prepare"),
}
"""Outcomes by seed, which no process has to find; all others are exact."""
KINDS = ("linear", "add", "avg_pool")


class Campaign:
    """A campaign whose outcomes are given: the seeds that were run and those that were shrunk here, and the results."""

    def __init__(self, broken: bool = False) -> None:
        self.ran, self.shrunk, self.broken = list[int](), list[int](), broken

    def run(self, program: Any, target: Any, seconds: float) -> Outcome:
        if self.broken:
            raise OSError("no processes left")
        self.ran.append(program.seed)
        return BAD.get(program.seed, Outcome("exact"))

    def shrink(self, program: Any, outcome: Outcome, run: Any, seconds: float) -> Any:
        self.shrunk.append(program.seed)
        return program

    def __enter__(self) -> Campaign:
        self.patches = [
            mock.patch.object(fuzz, name, value)
            for name, value in {"run_in_process": self.run, "shrink": self.shrink, "ROUND": 2}.items()
        ]
        for patch in self.patches:
            patch.start()
        return self

    def __exit__(self, *error: object) -> None:
        for patch in self.patches:
            patch.stop()

    def command(self, *arguments: str) -> tuple[int, str, str]:
        """The exit status of the command, and what it prints."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = main(["--target", "onnxruntime", "--seed", str(SEEDS[0]), "--count", str(len(SEEDS)), *arguments])
        return status, out.getvalue(), err.getvalue()


def fuzzed(jobs: int = 1) -> dict[str, Any]:
    """The results of a campaign, as lines, and what ran here."""
    with Campaign() as work:
        found = list(fuzz.campaign("onnxruntime", targets.onnxruntime, SEEDS, jobs=jobs))
    if not dist.is_initialized():  # one process yields them as they end
        found.sort(key=lambda result: result.seed)
    return {"lines": [result.line() for result in found], "ran": work.ran, "shrunk": work.shrunk}


def wrong_chip(artifact: Any, inputs: Any) -> Any:
    """A chip that does not run."""
    raise NotImplementedError("wrong")


class Chip:
    """ONNX Runtime, which counts its runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, artifact: Any, inputs: list[Tensor]) -> Any:
        self.runs += 1
        runner: Any = targets.onnxruntime.runtime.runner
        return runner.run(artifact, inputs)


def kinds() -> dict[str, str]:
    """The first difference of each kind."""
    return check_each_kind(targets.onnxruntime, run=wrong_chip, kinds=KINDS, examples=1)


def cases(rank: int, folder: Path) -> dict[str, Any]:
    """What became of every case on this rank."""
    found: dict[str, Any] = {"fuzzed": fuzzed(), "two jobs": fuzzed(jobs=2)}
    file = folder / f"{rank}.jsonl"  # only that of rank 0 is read and written
    with Campaign() as work:
        found["command"] = work.command("--file", str(file))
    found["file"] = file.read_text() if file.exists() else None
    if rank == 0:
        file.write_text("".join(f"{line}\n" for line in file.read_text().splitlines()[:5]))
    with Campaign() as work:
        found["resumed"] = work.command("--file", str(file))
    found["ran again"], found["resumed file"] = work.ran, file.read_text() if file.exists() else None
    with Campaign(broken=rank == 1) as work:
        try:
            found["broken"] = ("status", *work.command())
        except OSError as e:
            found["broken"] = ("error", str(e))
    found["kinds"] = kinds()
    chip = Chip()
    found["good"], found["runs"] = check_each_kind(targets.onnxruntime, run=chip, kinds=KINDS, examples=1), chip.runs
    try:
        check_each_kind(targets.onnxruntime, kinds=("nothing",))
    except QfuncError as e:
        found["unknown kind"] = str(e)
    return found


def work(rank: int, where: str) -> None:
    """One of the processes."""
    torch.set_num_threads(1)
    folder = Path(where)
    dist.init_process_group("gloo", init_method=Path(folder, "meet").as_uri(), rank=rank, world_size=RANKS)
    torch.save(cases(rank, folder), folder / f"{rank}.pt")
    dist.destroy_process_group()
