"""Many networks on one target: drawn, run in processes of their own, shrunk where they fail, and recorded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

from attrs import field, frozen

from qfunc.errors import SpecError, VerifyError
from qfunc.specs import Target
from qfunc.specs.protocols import OptionalRunner
from qfunc.testing.fuzz.outcome import Outcome
from qfunc.testing.fuzz.process import run_in_process
from qfunc.testing.fuzz.shrink import shrink
from qfunc.testing.grammar.families import program


@frozen
class Result:
    """One network of a campaign.

    Attributes:
        seed: Its seed.
        target: The target's name.
        edited: True if the network edits the target.
        outcome: What became of it.
        script: A program that shows a bad outcome, shrunk if its signature is the first.
    """

    seed: int
    target: str
    edited: bool
    outcome: Outcome
    script: str = field(default="", repr=False)

    def line(self) -> str:
        """Return the result as a line of JSON."""
        values = {"seed": self.seed, "target": self.target, "edited": self.edited, **self.outcome.to_dict()}
        return json.dumps({**values, "script": self.script})


def read_results(file: Path, target: str) -> list[Result]:
    """Return the results of a target in a file of lines of JSON; none if there is no file."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [_result(values) for line in lines if (values := json.loads(line))["target"] == target]


def _result(values: dict[str, Any]) -> Result:
    of_result = {name: values.pop(name) for name in ("seed", "target", "edited", "script")}
    return Result(**of_result, outcome=Outcome(**values))


def runnable_target(name: str) -> Target:
    """Return the target of a name, whose runtime is installed.

    Raises:
        SpecError: there is no such target, or it is a function.
        VerifyError: its runtime does not run here.
    """
    from qfunc import targets

    target = getattr(targets, name, None) if name in targets.__all__ else None
    if not isinstance(target, Target):
        values = {n: getattr(targets, n) for n in targets.__all__}
        runs = ", ".join(n for n, v in values.items() if isinstance(v, Target) and v.runtime.runner is not None)
        raise SpecError(where="fuzz, --target", found=repr(name), wanted=f"one of {runs}", do="Choose a target with a runtime.")
    runner = target.runtime.runner
    missing = runner.missing() if isinstance(runner, OptionalRunner) else "no runtime that runs here" if runner is None else ""
    if missing:
        do = "Install it, or choose another target."
        raise VerifyError(where=f"fuzz, --target {name}", found=missing, wanted="a runtime to compare with", do=do)
    return target


def campaign(
    name: str,
    target: Target,
    seeds: Iterable[int],
    *,
    jobs: int = 1,
    limit: float = 60.0,
    shrinking: float = 90.0,
    known: Iterable[str] = (),
) -> Iterator[Result]:
    """Yield the result of each seed, as they end.

    Args:
        name: The target's name, for scripts.
        target: The target.
        seeds: The seeds.
        jobs: The number of processes at a time.
        limit: The seconds of one network.
        shrinking: The seconds of one search for a smaller program; 0 for none.
        known: Signatures whose programs are not shrunk again.
    """
    signatures = set(known)

    def one(seed: int) -> Result:
        drawn = program(seed)
        run = partial(run_in_process, target=target, seconds=limit)
        outcome = run(drawn)
        new = outcome.bad and outcome.signature not in signatures
        if new:
            signatures.add(outcome.signature)
        shown = shrink(drawn, outcome, run, shrinking) if new and shrinking else drawn
        return Result(seed, name, bool(drawn.edits), outcome, shown.script(name) if outcome.bad else "")

    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(one, seed) for seed in seeds]):
            yield done.result()


__all__ = ["Result", "campaign", "read_results", "runnable_target"]
