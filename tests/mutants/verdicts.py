"""From results to verdicts: which tests of a mutant run next, and whether a test that failed passes without it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, pairwise

from attrs import define, field

from mutants.mutant import Mutant
from mutants.trials import ENDED, FOREIGN, PASSED, Job, Result

CAUGHT, MISSED, OVER, NOT_RUN = "caught", "MISSED", "time over", "not run"
_STAGES = (0, 3, 15, 60)  # files of tests, the likeliest first: their imports take time
_NO_TESTS = 5  # pytest's exit code
_CONFIRMED = 60.0  # seconds until a test that failed must start on the unchanged library
_TRACED, _HOUR = 15, 3600.0  # files of tests in one traced process


@define(eq=False)
class Trial:
    """A mutant, and its tests in stages.

    Args:
        left: Seconds for its tests.
        later: Whether the first stage is over.
        passed: The number of tests that passed.
        skipped: Whether the first stage lacked a package, or skipped all tests.
        failed: The test that failed.
    """

    mutant: Mutant
    stages: list[tuple[str, ...]]
    left: float
    later: bool = False
    passed: int = 0
    skipped: bool = False
    failed: str = ""
    verdict: str = ""
    reason: str = ""

    @classmethod
    def of(cls, mutant: Mutant, tests: list[str], seconds: float) -> Trial:
        """Return the trial of a mutant by files of tests, the likeliest first."""
        return cls(mutant, [tuple(tests[a:b]) for a, b in pairwise(_STAGES) if tests[a:b]], seconds)

    def end(self, verdict: str, reason: str) -> list[Job]:
        """Note and print the verdict; no job follows."""
        self.verdict, self.reason = verdict, reason
        print(f"{verdict:9} {self.mutant.name:60} {reason}", flush=True)
        return []


@define(eq=False)
class Trials:
    """The trials of mutants.

    Args:
        sound: Tests that failed with a mutant and pass on the unchanged library.
        failing: Tests that fail on the unchanged library, which are left out.
        asked: The jobs that find out which of the two.
        numbers: A number for each of these jobs: two mutants can ask for one test at a time.
    """

    trials: dict[Mutant, Trial]
    sound: set[str] = field(factory=set)
    failing: dict[str, None] = field(factory=dict)
    asked: dict[Job, Trial] = field(factory=dict)
    numbers: Iterator[int] = field(factory=count)

    def first(self) -> list[Job]:
        """Return the first stage of each mutant."""
        return [job for trial in self.trials.values() for job in self._stage(trial)]

    def follow(self, result: Result) -> list[Job]:
        """Note a result and return the job that follows from it.

        Raises:
            RuntimeError: the tests did not import the library of the copy.
        """
        if result.job.mutant is None:
            return self._of_unchanged(result, self.asked.pop(result.job))
        if result.code == FOREIGN:
            raise RuntimeError(result.tail)
        trial = self.trials[result.job.mutant]
        trial.left -= result.seconds
        trial.passed += result.passed
        trial.skipped |= result.missing and not trial.later
        if result.code in (PASSED, ENDED, _NO_TESTS):
            trial.stages, trial.later = trial.stages[1:], True
            return self._stage(trial)
        trial.failed = result.test or result.job.tests[0]  # no test, if none could be imported
        if trial.failed in self.sound:
            return trial.end(CAUGHT, trial.failed)
        # Where a file of tests could not be imported, its import is asked for, and no time is given to its tests.
        job = Job((trial.failed,), _CONFIRMED if "::" in trial.failed else 0.0, number=next(self.numbers))
        self.asked[job] = trial
        return [job]

    def traced(self, tests: list[str]) -> list[Job]:
        """Return files of tests, on the unchanged library, traced in the functions of the missed mutants."""
        files = tuple(sorted({trial.mutant.path for trial in self._missed()}))
        parts = [tuple(tests[i : i + _TRACED]) for i in range(0, len(tests), _TRACED)] if files else []
        return [Job(part, _HOUR, traced=files) for part in parts]

    def reach(self, result: Result) -> list[Job]:
        """Note which tests reach the missed mutants."""
        for trial in self._missed():
            place = set(trial.mutant.statement)
            found = [test for test, lines in result.lines.items() if place & set(lines.get(trial.mutant.path, ()))]
            trial.stages = [(*(trial.stages[0] if trial.stages else ()), *found)]
        return []

    def last(self, seconds: float) -> list[Job]:
        """Return the tests that reach the missed mutants."""
        for trial in self._missed():
            trial.stages = [stage for stage in trial.stages if stage]
            trial.left, trial.passed, trial.reason = seconds, 0, trial.reason if trial.stages else "no test reaches it"
        return [job for trial in self._missed() if trial.stages for job in self._stage(trial)]

    def _missed(self) -> list[Trial]:
        return [t for t in self.trials.values() if t.verdict in (MISSED, OVER) and t.mutant.statement]

    def _stage(self, trial: Trial) -> list[Job]:
        if trial.stages and trial.left > 0:
            return [Job(trial.stages[0], trial.left, trial.mutant, tuple(self.failing))]
        return trial.end(NOT_RUN if trial.skipped else OVER if trial.stages else MISSED, f"{trial.passed} tests passed")

    def _of_unchanged(self, result: Result, trial: Trial) -> list[Job]:
        if result.code in (PASSED, ENDED):
            self.sound.add(trial.failed)
            return trial.end(CAUGHT, trial.failed)
        self.failing[trial.failed] = None
        stages = [tuple(test for test in stage if test not in self.failing) for stage in trial.stages]
        trial.stages = [stage for stage in stages if stage]
        return self._stage(trial)
