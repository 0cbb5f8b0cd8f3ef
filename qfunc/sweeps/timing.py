"""The times of the rows: the artifacts run in turns on the runtimes that are installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import evolve

from qfunc.diagnosis.latency import fastest_in_turns
from qfunc.lowering.artifact import Artifact
from qfunc.specs import Target
from qfunc.specs.protocols import LoadingRunner
from qfunc.sweeps.measure import reason
from qfunc.sweeps.report import SweepRow


def time_rows(
    targets: Mapping[str, Target],
    rows: Mapping[str, SweepRow],
    artifacts: Mapping[str, Artifact],
    inputs: Sequence[Any],
    runs: int,
) -> dict[str, SweepRow]:
    """Return the rows of the artifacts with the least seconds of one batch, or with the reason why there are none."""
    failed, loaded = dict[str, str](), dict[str, Callable[[Sequence[Any]], Any]]()
    for name, artifact in artifacts.items():
        runner = targets[name].runtime.runner
        if runner is None:
            failed[name] = "no time: no runner"
            continue
        try:
            if missing := getattr(runner, "missing", lambda: "")():
                failed[name] = f"no time: {missing}"
                continue
            loaded[name] = runner.loaded(artifact) if isinstance(runner, LoadingRunner) else partial(runner.run, artifact)
        except Exception as e:
            failed[name] = reason(e)

    def run(name: str, given: Sequence[Any]) -> None:
        if name not in failed:
            try:
                loaded[name](given)
            except Exception as e:
                failed[name] = reason(e)

    seconds = fastest_in_turns([partial(run, name) for name in loaded], inputs, runs)
    found = {name: evolve(rows[name], seconds=s) for name, s in zip(loaded, seconds, strict=True)}
    return found | {name: evolve(rows[name], why=why) for name, why in failed.items()}
