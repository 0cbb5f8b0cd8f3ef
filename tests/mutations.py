"""Would the tests notice?  Changes one line at a time in a copy of the library and runs the tests that guard it.

    python tests/mutations.py                         one mutant of every file
    python tests/mutations.py --search --seed 300     the same with other mutants, to be run at night: the day is the seed
    python tests/mutations.py --jobs 8 --shard 2/4    eight at a time; the second of four parts
    python tests/mutations.py --sample 60 --seed 7    sixty mutants
    python tests/mutations.py --changed HEAD~1        one mutant of every file that differs from a revision
    python tests/mutations.py --only specs/scheme.py --only specs/edit.py:41.2    all of a file, and one

A mutant is caught if a test fails that passes on the unchanged library.  The exit code is 0 if all mutants are caught, or
the share `--least` of them.  A mutant that no test noticed counts as not run if the likeliest tests need a package that is
not installed, or were all skipped.  The likeliest tests share words with the mutant.  `--search` gives what they miss to
all tests that reach it.
"""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from random import Random

from mutants.guards import LIBRARY, files_of_tests, ranked, sources
from mutants.mutant import Changes, Mutant
from mutants.trials import Copy, run
from mutants.verdicts import CAUGHT, MISSED, NOT_RUN, OVER, Trial, Trials

ROOT = Path(__file__).resolve().parents[1]


@cache
def changes(path: str) -> Changes:
    """Return the changes of a file of the library."""
    return Changes.of((ROOT / path).read_text(), path)


def of_each(files: Iterable[str], seed: int) -> list[Mutant]:
    """Return one mutant of each file that has some."""
    return [changes(path).drawn(Random(f"{seed} {path}")) for path in files if changes(path).by_line]


def sampled(files: list[str], count: int, seed: int) -> list[Mutant]:
    """Return mutants of lines that are drawn from all lines: a long file has more."""
    random, found = Random(seed), dict[str, Mutant]()
    lengths = [len((ROOT / path).read_text().splitlines()) for path in files]
    for path in random.choices(files, lengths, k=20 * count) if any(lengths) else []:
        if len(found) < count and changes(path).by_line:
            mutant = changes(path).drawn(random)
            found[mutant.name] = mutant
    return list(found.values())


def named(names: Iterable[str]) -> list[Mutant]:
    """Return the mutants of the given names, and all of the files that are given.

    Raises:
        SystemExit: no file or no mutant has the name.
    """
    found = []
    for name in names:
        path, _, place = name.partition(":")
        try:
            line, _, number = place.partition(".")
            numbers = changes(path).numbers
            wanted = [(int(line), int(number))] if place else [(a, n) for a in numbers for n in range(1, numbers[a] + 1)]
            found += [changes(path).mutant(*each) for each in wanted]
        except (OSError, LookupError, ValueError):
            raise SystemExit(f"no mutant is called {name}") from None
    return found


def changed(revision: str) -> list[str]:
    """Return the files of the library whose content differs from that of a revision, moved files left out.

    Raises:
        SystemExit: git knows no such revision.
    """
    command = ["git", "diff", "--name-only", "--find-renames=100%", "--diff-filter=AM", revision, "--", *LIBRARY]
    made = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    if made.returncode:
        raise SystemExit(made.stderr.strip())
    return sorted(set(made.stdout.split()) & set(sources(ROOT)))


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


def chosen(given: argparse.Namespace) -> list[Mutant]:
    """Return the mutants of the command line."""
    part, parts = given.shard
    if given.only:
        return named(given.only)[part - 1 :: parts]
    files = changed(given.changed) if given.changed else sources(ROOT)
    if given.sample is None:
        return of_each(files[part - 1 :: parts], given.seed)
    return sampled(files or sources(ROOT), given.sample, given.seed)[part - 1 :: parts]


def report(trials: Iterable[Trial], least: float, seconds: float) -> bool:
    """Print what was not caught and the share; return whether it suffices."""
    trials = list(trials)
    for trial in trials:
        if trial.verdict in (MISSED, OVER):
            old, new = (ROOT / trial.mutant.path).read_text().splitlines(), trial.mutant.text.splitlines()
            lines = [line for line in difflib.unified_diff(old, new, n=0, lineterm="") if line[:3] not in ("---", "+++")]
            print(f"\n{trial.verdict} {trial.mutant.name}, {trial.mutant.definition}", *lines, trial.reason, sep="\n")
    counts = Counter(trial.verdict for trial in trials)
    decided = len(trials) - counts[NOT_RUN]
    share = counts[CAUGHT] / decided if decided else 1.0
    shown = ", ".join(f"{counts[v]} {v.lower()}" for v in (CAUGHT, MISSED, OVER, NOT_RUN))
    print(f"\n{len(trials)} mutants: {shown} in {seconds:.0f} s; share caught {share:.0%}, wanted {least:.0%}")
    return share >= least


def main() -> int:
    """Run the mutants of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, metavar="N", help="how many, drawn at random; of all files if none has changed")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--changed", metavar="REV", help="only files that differ from a git revision")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a file or a mutant; may be given again")
    parser.add_argument("--shard", type=part_of, default=(1, 1), metavar="I/N", help="every N-th, from the I-th")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="at a time; default: the cores")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long the tests of one mutant may run")
    parser.add_argument("--least", type=float, default=1.0, metavar="SHARE", help="the share that must be caught; default: 1.0")
    parser.add_argument("--search", action="store_true", help="run all tests once, to find those that reach missed mutants")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
    start = time.monotonic()
    mutants = chosen(given)
    os.environ.pop("GIT_DIR", None)  # of the checkout: tests see no repository
    trials = Trials({m: Trial.of(m, ranked(ROOT, m), given.seconds) for m in mutants})
    with tempfile.TemporaryDirectory(prefix="qfunc-mutations-") as folder:
        copies = [Copy.of(ROOT, Path(folder) / str(i)) for i in range(max(1, min(given.jobs, len(mutants))))]
        run(trials.first(), copies, trials.follow)
        if given.search:
            run(trials.traced(files_of_tests(ROOT)), copies, trials.reach)
            run(trials.last(given.seconds), copies, trials.follow)
    if trials.failing:
        print("\nfail on the unchanged library, and were left out:", *trials.failing, sep="\n")
    return 0 if report(trials.trials.values(), given.least, time.monotonic() - start) else 1


if __name__ == "__main__":
    sys.exit(main())
