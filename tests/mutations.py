"""Would the tests notice?  Breaks one line at a time in a copy of the library and runs the tests that guard it.

    python tests/mutations.py                      every breakage
    python tests/mutations.py --sample 5 --seed 7  five of them
    python tests/mutations.py --only NAME          one

The exit code is 0 if every breakage was caught.  The breakages are data: tests/mutants.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from attrs import frozen
from mutants import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("qfunc", "specs", "targets", "tests", "pyproject.toml")
CAUGHT, MISSED, BROKEN = "caught", "MISSED", "BROKEN"
_PASSED, _FAILED = 0, 1  # pytest's exit codes; the others mean that no test has spoken
_WHERE = "import qfunc, qfunc.specs as s, qfunc.targets as t; print(qfunc.__file__, s.__file__, t.__file__, sep='\\n')"


@frozen
class Outcome:
    """What became of one mutation."""

    mutation: Mutation
    verdict: str
    seconds: float
    reason: str = ""


@frozen
class Copy:
    """A copy of the tree, and Python processes that import it and nothing of the original."""

    folder: Path

    @classmethod
    def of(cls, root: Path, folder: Path) -> Copy:
        """Copies what the tests need."""
        for name in COPIED:
            source = root / name
            if source.is_dir():
                shutil.copytree(source, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", ".*"))
            else:
                shutil.copy(source, folder / name)
        return cls(folder)

    def python(self, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
        """Runs Python in the copy."""
        # Bytecode is told from its source by size and second, in which a breakage may equal the original.
        env = os.environ | {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=self.folder, env=env, text=True, capture_output=True, timeout=seconds)

    def require_own(self) -> None:
        """Refuses to go on if another checkout would be tested.

        Raises:
            RuntimeError: qfunc is imported from elsewhere.
        """
        made = self.python("-c", _WHERE, seconds=300)
        places = made.stdout.split("\n")[:-1]
        if not places or not all(Path(p).resolve().is_relative_to(self.folder.resolve()) for p in places):
            raise RuntimeError(f"the copy is not what is imported: {places or made.stderr}")

    def test(self, tests: tuple[str, ...], seconds: float) -> tuple[int, str]:
        """(pytest's exit code, its last lines)."""
        options = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=short", "--no-header", "--hypothesis-seed=0")
        made = self.python("-m", "pytest", *options, *tests, seconds=seconds)
        return made.returncode, "\n".join((made.stdout + made.stderr).strip().splitlines()[-15:])

    def tried(self, mutation: Mutation, seconds: float) -> Outcome:
        """Breaks the line, runs the tests, mends the line."""
        start = time.monotonic()
        place = self.folder / mutation.file
        try:
            text = mutation.broken(self.folder)
        except (OSError, ValueError) as e:
            return Outcome(mutation, BROKEN, 0.0, str(e))
        whole = place.read_text()
        try:
            place.write_text(text)
            code, tail = self.test(mutation.tests, seconds)
        except subprocess.TimeoutExpired:
            code, tail = -1, f"no end after {seconds:.0f} s"
        finally:
            place.write_text(whole)
        verdict = {_PASSED: MISSED, _FAILED: CAUGHT}.get(code, BROKEN)
        return Outcome(mutation, verdict, time.monotonic() - start, "" if verdict == CAUGHT else tail)


def chosen(only: list[str], sample: int | None, seed: int) -> tuple[Mutation, ...]:
    """The mutations that were asked for.

    Raises:
        SystemExit: a name that no mutation has.
    """
    if unknown := set(only) - {m.name for m in MUTATIONS}:
        raise SystemExit(f"no mutation is called {', '.join(sorted(unknown))}")
    wanted = tuple(m for m in MUTATIONS if not only or m.name in only)
    return wanted if sample is None else tuple(random.Random(seed).sample(wanted, min(sample, len(wanted))))


def main() -> int:
    """Runs the mutations of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, help="how many, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this one; may be given again")
    parser.add_argument("--seconds", type=float, default=180.0, help="the longest that one mutation may take")
    given = parser.parse_args()
    mutations = chosen(given.only, given.sample, given.seed)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="qfunc-mutations-") as folder:
        copy = Copy.of(ROOT, Path(folder))
        copy.require_own()
        code, tail = copy.test(tuple(dict.fromkeys(t for m in mutations for t in m.tests)), 20 * given.seconds)
        if code != _PASSED:
            print(f"the tests do not pass on the unbroken copy:\n{tail}")
            return 1
        print(f"{'unbroken':46} passes {time.monotonic() - start:6.1f} s", flush=True)
        outcomes = []
        for mutation in mutations:
            outcome = copy.tried(mutation, given.seconds)
            print(f"{mutation.name:46} {outcome.verdict} {outcome.seconds:6.1f} s", flush=True)
            outcomes.append(outcome)
    counts = {v: sum(o.verdict == v for o in outcomes) for v in (CAUGHT, MISSED, BROKEN)}
    for outcome in (o for o in outcomes if o.verdict != CAUGHT):
        m = outcome.mutation
        print(f"\n{outcome.verdict} {m.name}, {m.file}\n  - {m.old}\n  + {m.new}\n{outcome.reason}")
    summary = ", ".join(f"{count} {verdict.lower()}" for verdict, count in counts.items() if count or verdict != BROKEN)
    print(f"\n{len(outcomes)} mutations: {summary} in {time.monotonic() - start:.0f} s")
    return 0 if counts[CAUGHT] == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
