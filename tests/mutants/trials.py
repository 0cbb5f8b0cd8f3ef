"""Runs of pytest in copies of the tree, one process each, several at a time.

Most of the time of a short test is the import of torch.  On Linux a run is therefore a fork of a process that has
imported torch and pytest, and nothing of the library.  Elsewhere it is a new interpreter.
"""

from __future__ import annotations

import compileall
import gc
import importlib
import multiprocessing
import multiprocessing.connection
import os
import py_compile
import shutil
import signal
import sys
import time
import types
from collections import deque
from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from attrs import frozen

from mutants.mutation import Mutation

COPIED = ("qfunc", "specs", "targets", "tests", "pyproject.toml")
FOREIGN, TIMEOUT = 70, -1  # exit codes beside pytest's
_IMPORTED_ONCE = ("pytest", "hypothesis", "numpy", "torch", "torch._dynamo", "onnx")  # none of them starts a thread
# Plain assertions fail as others do, and the modules of hypothesis need not be compiled again in every process.
_OPTIONS = (
    "-x", "-q", "-n0", "-m", "", "-p", "no:cacheprovider", "--assert=plain", "--tb=short", "--no-header", "--hypothesis-seed=0"
)  # fmt: skip


@frozen
class Job:
    """Tests to run, with a breakage or without one."""

    tests: tuple[str, ...]
    seconds: float
    mutation: Mutation | None = None


@frozen
class Result:
    """What became of a job: pytest's exit code, the seconds, the last lines of the output."""

    job: Job
    code: int
    seconds: float
    tail: str


@frozen
class Copy:
    """A copy of the tree, which one process at a time uses."""

    folder: Path

    @classmethod
    def of(cls, root: Path, folder: Path) -> Copy:
        """Return a copy of what the tests need.

        Its bytecode is compared with the source by a hash.  By size and second a breakage may equal the original.
        """
        tree = folder.resolve() / "tree"
        tree.mkdir(parents=True)
        for name in COPIED:
            source = root / name
            if source.is_dir():
                shutil.copytree(source, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", ".*"))
            else:
                shutil.copy(source, tree / name)
        for name in ("qfunc", "specs", "targets"):
            compileall.compile_dir(tree / name, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
        return cls(folder.resolve())

    @property
    def tree(self) -> Path:
        """The folder that stands for the checkout."""
        return self.folder / "tree"

    @property
    def log(self) -> Path:
        """The output of the process."""
        return self.folder / "log"


@frozen
class Running:
    """A job, its process and the text that its breakage replaced."""

    job: Job
    copy: Copy
    process: BaseProcess
    start: float
    whole: str | None

    @classmethod
    def started(cls, job: Job, copy: Copy, context: BaseContext) -> Running:
        """Return the job at work, its line broken.

        Raises:
            ValueError: the mutation does not apply.
        """
        whole = None
        if job.mutation is not None:
            place, broken = job.mutation.file(copy.tree), job.mutation.broken(copy.tree)
            whole = place.read_text()
            place.write_text(broken)
        process: BaseProcess = context.Process(target=run_pytest, args=(copy, job.tests))  # type: ignore[attr-defined]
        process.start()
        return cls(job, copy, process, time.monotonic(), whole)

    def result(self) -> Result | None:
        """Return the result and mend the line, None while the process is at work."""
        seconds = time.monotonic() - self.start
        late = seconds > self.job.seconds
        if self.process.exitcode is None and not late:
            return None
        _end(self.process)
        code = TIMEOUT if late or self.process.exitcode is None else self.process.exitcode
        if self.whole is not None and self.job.mutation is not None:
            self.job.mutation.file(self.copy.tree).write_text(self.whole)
        log = self.copy.log.read_text(errors="replace") if self.copy.log.exists() else ""
        tail = f"no end after {self.job.seconds:.0f} s" if late else "\n".join(log.strip().splitlines()[-15:])
        return Result(self.job, code, seconds, tail)


def run(jobs: Iterable[Job], copies: Iterable[Copy], report: Callable[[Result], None]) -> None:
    """Run the jobs, as many at a time as there are copies, and report each result."""
    context, waiting, free = _context(), deque(jobs), list(copies)
    running: list[Running] = []
    while waiting or running:
        while waiting and free:
            job, copy = waiting.popleft(), free.pop()
            try:
                running.append(Running.started(job, copy, context))
            except ValueError as e:
                free.append(copy)
                report(Result(job, FOREIGN, 0.0, str(e)))
        if not running:
            continue
        first_end = min(r.start + r.job.seconds for r in running)
        multiprocessing.connection.wait([r.process.sentinel for r in running], max(0.0, first_end - time.monotonic()) + 0.01)
        for done in list(running):
            if result := done.result():
                running.remove(done)
                free.append(done.copy)
                report(result)


def run_pytest(copy: Copy, tests: tuple[str, ...]) -> None:
    """Run tests in a copy, in a process of its own, which exits with pytest's code."""
    if hasattr(os, "setsid"):
        os.setsid()  # what the tests start ends with this process
    with copy.log.open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    original, tree = Path(__file__).parents[2], copy.tree
    os.chdir(tree)
    os.environ |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    sys.dont_write_bytecode = True
    here = {"", *(str(p) for p in (original, original / "tests"))}
    sys.path[:] = [str(tree), *(p for p in sys.path if p not in here)]
    sys.modules["__main__"] = types.ModuleType("__main__")  # processes of a test would import it again
    for name in [n for n in sys.modules if n.partition(".")[0] == "mutants"]:
        del sys.modules[name]
    early = sorted(_of_library())
    import pytest

    code = int(pytest.main([*_OPTIONS, f"--basetemp={copy.folder / 'temporary'}", *tests]))
    own = str(tree.resolve()) + os.sep
    foreign = [f for f in _of_library().values() if f and not str(Path(f).resolve()).startswith(own)]
    if early or foreign:
        print(f"the copy is not what is imported: {early or foreign}")
        code = FOREIGN
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _of_library() -> dict[str, str | None]:
    """Return the files of the modules of the library that are imported."""
    found = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "qfunc"}
    return {n: getattr(m, "__file__", None) for n, m in found.items()}


def _context() -> BaseContext:
    """Return how processes start: by a fork of this one, which has imported torch, where that is sound."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    for name in _IMPORTED_ONCE:
        importlib.import_module(name)
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise RuntimeError(f"found {threads} threads, wanted one: a fork has the locks of the others, which nobody opens.")
    gc.collect()
    gc.freeze()  # a collection in a fork need not look at torch
    return multiprocessing.get_context("fork")


def _end(process: BaseProcess) -> None:
    """End a process and all that it started."""
    if process.pid is not None and hasattr(os, "killpg"):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
    else:
        process.kill()
    process.join()
