"""Would the tests notice?  Breaks one line at a time in a copy of the library and runs the tests that guard it.

    python tests/mutations.py                      every breakage
    python tests/mutations.py --jobs 8             every breakage, eight at a time
    python tests/mutations.py --shard 2/4          the second of four parts
    python tests/mutations.py --sample 5 --seed 7  five of them
    python tests/mutations.py --only NAME          one

The exit code is 0 if every breakage was caught.  The breakages are data: tests/mutants.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from mutants import MUTATIONS, Mutation
from mutants.trials import Copy, Job, Result, run

ROOT = Path(__file__).resolve().parents[1]
CAUGHT, MISSED, BROKEN, NOT_RUN = "caught", "MISSED", "BROKEN", "not run"
_PASSED, _FAILED = 0, 1  # pytest's exit codes; with the others no test has decided
_ALL_SKIPPED = re.compile(r"^s+\s+\[100%\]$", re.MULTILINE)  # of a runtime that is not installed


def verdict(result: Result) -> str:
    """Return what the tests made of a breakage."""
    if result.code == _PASSED and _ALL_SKIPPED.search(result.tail):
        return NOT_RUN
    return {_PASSED: MISSED, _FAILED: CAUGHT}.get(result.code, BROKEN)


def chosen(only: list[str], sample: int | None, seed: int, shard: tuple[int, int]) -> tuple[Mutation, ...]:
    """Return the mutations that were asked for.

    Raises:
        SystemExit: a name that no mutation has.
    """
    if unknown := set(only) - {m.name for m in MUTATIONS}:
        raise SystemExit(f"no mutation is called {', '.join(sorted(unknown))}")
    wanted = tuple(m for m in MUTATIONS if not only or m.name in only)
    wanted = wanted if sample is None else tuple(random.Random(seed).sample(wanted, min(sample, len(wanted))))
    part, parts = shard
    return wanted[part - 1 :: parts]


def part_of(text: str) -> tuple[int, int]:
    """Return the part and the number of parts.

    >>> part_of("2/4")
    (2, 4)

    Raises:
        argparse.ArgumentTypeError: not I/N, with I from 1 to N.
    """
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted I/N with I from 1 to N, such as 2/4")
    return int(part), int(parts)


def unbroken(mutations: tuple[Mutation, ...], seconds: float) -> list[Job]:
    """Return the tests of the mutations without a breakage, by file."""
    by_file: dict[str, dict[str, None]] = {}
    for test in (t for m in mutations for t in m.nodes):
        by_file.setdefault(test.partition("::")[0], {})[test] = None
    return [Job(tuple(tests), 20 * seconds) for tests in by_file.values()]


def report(results: list[Result], seconds: float) -> None:
    """Print what was not caught, and the verdicts by room and in all."""
    for result in results:
        if (m := result.job.mutation) is not None and verdict(result) not in (CAUGHT, NOT_RUN):
            print(f"\n{verdict(result)} {m.name}, {m.address}\n  - {m.old}\n  + {m.new}\n{result.tail}")
    print()
    for room in sorted({r.job.mutation.room for r in results if r.job.mutation}):
        of_room = Counter(verdict(r) for r in results if r.job.mutation and r.job.mutation.room == room)
        print(f"{room:20} {_counts(of_room)}")
    print(f"\n{len(results)} mutations: {_counts(Counter(map(verdict, results)))} in {seconds:.0f} s")


def _counts(verdicts: Counter[str]) -> str:
    shown = (v for v in (CAUGHT, MISSED, BROKEN, NOT_RUN) if verdicts[v] or v in (CAUGHT, MISSED))
    return ", ".join(f"{verdicts[v]} {v.lower()}" for v in shown)


def main() -> int:
    """Run the mutations of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, help="how many, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this one; may be given again")
    parser.add_argument("--shard", type=part_of, default=(1, 1), metavar="I/N", help="every N-th, from the I-th")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="at a time; default: the cores")
    parser.add_argument("--seconds", type=float, default=180.0, help="the longest that one mutation may take")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
    mutations = chosen(given.only, given.sample, given.seed, given.shard)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="qfunc-mutations-") as folder:
        copies = [Copy.of(ROOT, Path(folder) / str(i)) for i in range(max(1, min(given.jobs, len(mutations))))]
        failed: list[Result] = []
        run(unbroken(mutations, given.seconds), copies, lambda r: None if r.code == _PASSED else failed.append(r))
        if failed:
            print("\n".join(["the tests do not pass on the unbroken copy:", *(r.tail for r in failed)]))
            return 1
        print(f"{'unbroken':46} passes {time.monotonic() - start:6.1f} s", flush=True)
        results: list[Result] = []

        def done(result: Result) -> None:
            results.append(result)
            if (mutation := result.job.mutation) is not None:
                print(f"{mutation.name:46} {verdict(result)} {result.seconds:6.1f} s", flush=True)

        run([Job(m.nodes, given.seconds, m) for m in mutations], copies, done)
    report(results, time.monotonic() - start)
    return 0 if all(verdict(r) in (CAUGHT, NOT_RUN) for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
