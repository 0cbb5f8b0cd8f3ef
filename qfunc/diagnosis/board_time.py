"""The latency of files on another machine: a folder with the files and a program that times them, which needs no qfunc."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import numpy as np
from attrs import field, frozen
from torch import Tensor

from qfunc.errors import SpecError, VerifyError
from qfunc.lowering.artifact import Artifact
from qfunc.lowering.checked_runtime import CheckedRunner, CheckedRuntime
from qfunc.specs._check import integer, number
from qfunc.specs._values import short

PROGRAM = "times.py"


def _checked(instance: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, CheckedRunner):
        wanted = "the runner of ONNX Runtime, LiteRT, ncnn or OpenVINO"
        do = "Pass target.runtime.runner, or a function of your own."
        raise SpecError(where="BoardTime.runner", found=short(value), wanted=wanted, do=do)


def _function(instance: Any, attribute: Any, value: Any) -> None:
    if not callable(value):
        do = "Write one that copies the folder, runs `python times.py` in the copy, and returns what that prints."
        raise SpecError(where="BoardTime.run", found=short(value), wanted="a function (folder) -> text", do=do)


@frozen
class BoardTime:
    """The least time of several runs of one batch on another machine, in seconds.

    Each question is a folder: the files, "inputs.npz", "times.json" and "times.py". The program needs Python, NumPy and the
    runtime. It loads each file once, runs them in turns, and prints their least seconds as one line of JSON.

    Args:
        runner: The runner of the runtime, `target.runtime.runner`.
        run: A function (folder) -> what `python times.py` prints in a copy of the folder on the board.
        threads: The threads of the runtime there.
        runs: The least number of runs of each file.
        seconds: The least time of all runs together.
    Raises:
        SpecError: a runner without such a program, no function, or numbers that are not positive.
        VerifyError: the board printed something else.

    >>> import subprocess, sys
    >>> from qfunc.targets.runtimes import OnnxRuntimeRunner
    >>> def here(folder):
    ...     return subprocess.run([sys.executable, folder / "times.py"], capture_output=True, text=True, check=True).stdout
    >>> BoardTime(OnnxRuntimeRunner(), here, threads=4).runs
    30
    """

    runner: Any = field(validator=_checked)
    run: Callable[[Path], str] = field(validator=_function)
    threads: int = field(default=1, kw_only=True, validator=integer(1))
    runs: int = field(default=30, kw_only=True, validator=integer(1))
    seconds: float = field(default=0.1, kw_only=True, validator=number(positive=True))

    def __call__(self, artifacts: Sequence[Artifact], inputs: Sequence[Tensor]) -> list[float]:
        """Return the seconds of one batch for each artifact."""
        if not artifacts:
            return []
        runtime: CheckedRuntime = self.runner.checked()
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            models = [_written(place, f"{index}", runtime, artifact) for index, artifact in enumerate(artifacts)]
            plan: dict[str, Any] = {"runtime": runtime.name, "models": models}
            plan |= {"threads": self.threads, "runs": self.runs, "seconds": self.seconds}
            (place / "times.json").write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
            arrays: dict[str, Any] = {f"input{k}": x.detach().cpu().numpy() for k, x in enumerate(inputs)}
            np.savez(place / "inputs.npz", **arrays)
            program = (resources("qfunc") / "diagnosis" / PROGRAM).read_text(encoding="utf-8")
            (place / PROGRAM).write_text(program, encoding="utf-8")
            return _seconds(self.run(place), len(artifacts))


def _written(place: Path, index: str, runtime: CheckedRuntime, artifact: Artifact) -> dict[str, Any]:
    # Write the files that the runtime loads, under names of their own, and return their entry in times.json.
    names = [f"{index}{''.join(Path(default).suffixes)}" for default in runtime.files]
    for name, own in zip(names, runtime.names(artifact), strict=True):
        (place / name).write_bytes(artifact.files[own])
    settings = {k: v for k, v in runtime.settings(artifact).items() if k not in ("qparams", "threads")}
    return {"files": names, "settings": settings}


def _seconds(printed: Any, count: int) -> list[float]:
    lines = str(printed).strip().splitlines() or [""]
    try:
        found = json.loads(lines[-1])
    except ValueError:
        found = None
    times: list[Any] = found if isinstance(found, list) else []
    known = len(times) == count and all(type(x) in (int, float) for x in times)
    if not known or not all(0 < x < math.inf for x in times):
        do = f"Return what `python {PROGRAM}` prints in a copy of the folder on the board."
        wanted = f"a line of JSON with {count} times" if count > 1 else "a line of JSON with one time"
        raise VerifyError(where="BoardTime, the result of run", found=repr(lines[-1][:80]), wanted=wanted, do=do)
    return [float(x) for x in times]
