"""Runs of pytest in copies of the tree, one process each, several at a time.

Most of the time of a short test is the import of torch.  On Linux a run is therefore a fork of a process that has
imported torch and pytest, and nothing of the library.  Elsewhere it is a new interpreter.
"""

from __future__ import annotations

import compileall
import gc
import importlib
import json
import multiprocessing
import multiprocessing.connection
import os
import py_compile
import re
import shutil
import signal
import sys
import time
import types
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from attrs import field, frozen
from coverage import Coverage, CoverageData

from mutants.mutant import Mutant

COPIED = ("qfunc", "specs", "targets", "tests", "pyproject.toml")
PASSED = 0  # pytest's exit code
FOREIGN, TIMEOUT, ENDED = 70, 71, 72  # exit codes beside pytest's: another library, a test without an end, tests left
_MISSING = re.compile("not installed|could not import|No module named")
_LONGEST = 120.0  # seconds that one test may take
_IMPORTED_ONCE = ("pytest", "hypothesis", "numpy", "torch", "torch._dynamo", "onnx")  # none of them starts a thread
# Plain assertions fail as others do, and the modules of hypothesis need not be compiled again in every process.
_OPTIONS = (
    "-x", "-q", "-n0", "-m", "", "-p", "no:cacheprovider", "--assert=plain", "--tb=short", "--no-header", "--hypothesis-seed=0",
)  # fmt: skip


@frozen
class Job:
    """Tests to run for so many seconds.

    Args:
        tests: Files and tests, in their order.
        seconds: No test starts later.
        mutant: What is changed; None for the unchanged library.
        without: Tests to leave out.
        traced: Files of the library; which of their lines each test runs is part of the result.
        number: Distinguishes equal jobs.
    """

    tests: tuple[str, ...]
    seconds: float
    mutant: Mutant | None = None
    without: tuple[str, ...] = ()
    traced: tuple[str, ...] = ()
    number: int = 0


@frozen
class Result:
    """The result of a job.

    Args:
        code: The exit code of pytest, or one of FOREIGN, TIMEOUT, ENDED.
        test: The test that failed or did not end, or the file of tests that could not be imported.
        passed: The number of tests that passed.
        missing: Whether a test was skipped because a package is not installed, or all tests were skipped.
        lines: The lines of the traced files that each test ran.
        tail: The last lines of the output.
    """

    job: Job
    code: int
    seconds: float
    test: str
    passed: int
    missing: bool
    tail: str
    lines: dict[str, dict[str, list[int]]] = field(factory=dict, eq=False)


class Watch:
    """A plugin of pytest: short tests first, an end when the time is over, and a file that tells which test runs."""

    def __init__(self, place: Path, seconds: float) -> None:
        self.place, self.end = place, time.monotonic() + seconds
        self.passed, self.missing, self.skipped, self.test = 0, False, False, ""

    def write(self) -> None:
        """Write the numbers, and the test that runs."""
        missing = self.missing or (self.skipped and not self.passed)
        self.place.write_text(f"{self.passed} {int(missing)} {self.test}")

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        self.skipped |= report.skipped
        self.missing |= report.skipped and _MISSING.search(str(report.longrepr)) is not None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the long tests last."""
        items.sort(key=lambda item: item.get_closest_marker("thorough") is not None)

    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Write which test runs, or end the run."""
        self.test = item.nodeid
        self.write()
        if tracer := Coverage.current():
            tracer.switch_context(item.nodeid)
        if time.monotonic() > self.end:
            pytest.exit("the time is over", ENDED)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test that passed, and note a package that is not installed."""
        self.passed += report.passed and report.when == "call"
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write which file cannot be imported."""
        self._note(report)
        if report.failed:
            self.test = report.nodeid
            self.write()

    def pytest_sessionfinish(self) -> None:
        """Write the final numbers."""
        self.write()


@frozen
class Copy:
    """A copy of the tree, which one process at a time uses."""

    folder: Path

    @classmethod
    def of(cls, root: Path, folder: Path) -> Copy:
        """Return a copy of what the tests need.

        Its bytecode is compared with the source by a hash.  By size and second a mutant may equal the original.
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

    @property
    def lines(self) -> Path:
        """The lines that each test ran."""
        return self.folder / "lines"

    @property
    def watched(self) -> Path:
        """The number of tests that have passed, and the last test that ran."""
        return self.folder / "watched"


@frozen
class Running:
    """A job, its process and the text that its mutant replaced."""

    job: Job
    copy: Copy
    process: BaseProcess
    start: float
    whole: str

    @classmethod
    def started(cls, job: Job, copy: Copy, context: BaseContext) -> Running:
        """Return the job at work, its mutant written."""
        whole = ""
        if job.mutant is not None:
            place = copy.tree / job.mutant.path
            whole = place.read_text()
            place.write_text(job.mutant.text)
        copy.watched.write_text("0 0 ")
        process: BaseProcess = context.Process(target=run_pytest, args=(copy, job))  # type: ignore[attr-defined]
        process.start()
        return cls(job, copy, process, time.monotonic(), whole)

    @property
    def latest(self) -> float:
        """The time at which a test has no end."""
        return self.start + self.job.seconds + _LONGEST

    def result(self) -> Result | None:
        """Return the result and restore the file, None while the process is at work."""
        late = time.monotonic() > self.latest
        if self.process.exitcode is None and not late:
            return None
        seconds = time.monotonic() - self.start
        _end(self.process)
        code = TIMEOUT if late or self.process.exitcode is None else self.process.exitcode
        if self.job.mutant is not None:
            (self.copy.tree / self.job.mutant.path).write_text(self.whole)
        passed, missing, test = self.copy.watched.read_text().split(" ", 2)
        log = self.copy.log.read_text(errors="replace") if self.copy.log.exists() else ""
        lines = json.loads(self.copy.lines.read_text()) if self.copy.lines.exists() else {}
        self.copy.lines.unlink(missing_ok=True)
        tail = "\n".join(log.strip().splitlines()[-15:])
        return Result(self.job, code, seconds, test, int(passed), missing == "1", tail, lines)


def run(jobs: Iterable[Job], copies: Iterable[Copy], follow: Callable[[Result], Iterable[Job]]) -> None:
    """Run the jobs, as many at a time as there are copies, and those that follow from each result."""
    context, waiting, free = _context(), deque(jobs), list(copies)
    running: list[Running] = []
    while waiting or running:
        while waiting and free:
            running.append(Running.started(waiting.popleft(), free.pop(), context))
        first_end = min(r.latest for r in running)
        multiprocessing.connection.wait([r.process.sentinel for r in running], max(0.0, first_end - time.monotonic()) + 0.01)
        for done in list(running):
            if result := done.result():
                running.remove(done)
                free.append(done.copy)
                waiting.extendleft(follow(result))


def run_pytest(copy: Copy, job: Job) -> None:
    """Run the tests of a job in a copy, in a process of its own, which exits with pytest's code."""
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
    watch = Watch(copy.watched, job.seconds)
    options = [*_OPTIONS, f"--basetemp={copy.folder / 'temporary'}", *(f"--deselect={test}" for test in job.without)]
    options += ["--maxfail=100000"] if job.traced else []
    tracer = Coverage(data_file=None, config_file=False, include=[str(tree / path) for path in job.traced])
    with tracer.collect() if job.traced else nullcontext():
        code = int(pytest.main([*options, *job.tests], plugins=[watch]))
    if job.traced:
        copy.lines.write_text(json.dumps(_lines_by_test(tracer.get_data(), tree)))
    own = str(tree.resolve()) + os.sep
    foreign = [f for f in _of_library().values() if f and not str(Path(f).resolve()).startswith(own)]
    if early or foreign:
        print(f"the copy is not what is imported: {early or foreign}")
        code = FOREIGN
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _lines_by_test(data: CoverageData, tree: Path) -> dict[str, dict[str, list[int]]]:
    found: dict[str, dict[str, list[int]]] = {}
    for file in data.measured_files():
        for line, tests in data.contexts_by_lineno(file).items():
            for test in filter(None, tests):
                found.setdefault(test, {}).setdefault(Path(file).resolve().relative_to(tree).as_posix(), []).append(line)
    return found


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
