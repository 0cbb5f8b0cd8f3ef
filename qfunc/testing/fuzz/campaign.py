"""Many networks on one target: drawn, run, shrunk where they fail, and recorded.

Each trial has its own process, so that a crash or a hang of a runtime ends one trial only.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import evolve, field, frozen
from tqdm import tqdm

from qfunc.errors import SpecError, VerifyError
from qfunc.execution.distributed import ranks
from qfunc.specs import Target
from qfunc.specs.protocols import OptionalRunner
from qfunc.targets.runtimes import ExecuTorchRunner
from qfunc.testing.fuzz import outcome as kinds
from qfunc.testing.fuzz.outcome import Outcome
from qfunc.testing.fuzz.shrink import shrink
from qfunc.testing.grammar.families import program
from qfunc.testing.grammar.program import Program
from qfunc.testing.shares import gather_results

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Item = TypeVar("Item")
_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


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


ROUND = 16
"""The networks of each process between two exchanges: what a killed command loses."""


def campaign(
    name: str,
    target: Target,
    seeds: Iterable[int],
    *,
    jobs: int = 1,
    limit: float = 60.0,
    shrinking: float = 90.0,
    known: Iterable[str] = (),
    group: ProcessGroup | None = None,
) -> Iterator[Result]:
    """Yield the result of each seed: as they end, or of several processes in order, the same in all of them.

    Args:
        name: The target's name, for scripts.
        target: The target.
        seeds: The seeds.
        jobs: The number of networks at a time, of this process.
        limit: The seconds of one network.
        shrinking: The seconds of one search for a smaller program; 0 for none.
        known: Signatures whose programs are not shrunk again.
        group: The processes that share the seeds, of which each is run by one.  A signature is shrunk for its first seed,
            as in one process with one job.
    Raises:
        VerifyError: another process failed.
    """
    signatures, processes = set(known), ranks(group)
    run = partial(run_in_process, target=target, seconds=limit)

    def outcome(seed: int) -> Result:
        drawn = program(seed)
        found = run(drawn)
        return Result(seed, name, bool(drawn.edits), found, drawn.script(name) if found.bad else "")

    def smaller(result: Result) -> Result:
        shown = shrink(program(result.seed), result.outcome, run, shrinking)
        return evolve(result, script=shown.script(name))

    def is_new(result: Result) -> bool:
        new = result.outcome.bad and result.outcome.signature not in signatures
        if new:
            signatures.add(result.outcome.signature)
        return new and bool(shrinking)

    def alone(seed: int) -> Result:
        result = outcome(seed)
        return smaller(result) if is_new(result) else result

    with ThreadPoolExecutor(jobs) as pool:
        if processes is None:
            for done in as_completed([pool.submit(alone, seed) for seed in seeds]):
                yield done.result()
            return
        left = sorted(seeds)
        size = ROUND * jobs * processes.size()
        for start in range(0, len(left), size):
            found = _spread(pool, outcome, left[start : start + size], processes)
            new = _spread(pool, smaller, [result for result in found if is_new(result)], processes)
            shrunk = {result.seed: result for result in new}
            yield from (shrunk.get(result.seed, result) for result in found)


def _spread(
    pool: ThreadPoolExecutor, work: Callable[[Item], Result], items: Sequence[Item], processes: ProcessGroup
) -> list[Result]:
    # The result of each item, in order, each computed by one process.
    parts = gather_results(lambda rank, number: list(pool.map(work, items[rank::number])), processes, failed_elsewhere)
    return [parts[place % len(parts)][place // len(parts)] for place in range(len(items))]


def failed_elsewhere(text: str) -> VerifyError:
    """Return the error of a process of which another one failed."""
    do = "Repair that process, and start the command again; seeds in --file are not run again."
    return VerifyError(where="fuzz", found=f"a failure of {text}", wanted="results of all processes", do=do)


def run_in_process(program: Program, target: Target, runner: Any = None, seconds: float = 60.0) -> Outcome:
    """Return the outcome of a trial that runs in another process.

    A process that ends by a signal while the artifact runs is a wrong file, elsewhere a raw error.

    Args:
        program: The network.
        target: The target, pickled.
        runner: What runs artifacts, pickled; None for the target's own.
        seconds: The time after which the process is killed.
    """
    context: Any = multiprocessing.get_context(_METHOD)
    if _METHOD == "forkserver":
        slow = ["executorch.runtime"] if isinstance(runner or target.runtime.runner, ExecuTorchRunner) else []
        context.set_forkserver_preload(["qfunc.testing.fuzz.preload", "qfunc.targets", "onnx", "onnxruntime", *slow])
    stage = "start"
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(theirs, program, target, runner, log), daemon=True)
        process.start()
        theirs.close()
        try:
            while True:
                if not ours.poll(seconds):
                    return Outcome(kinds.TIME_LIMIT, stage, message=f"more than {seconds:g} s")
                received = ours.recv()
                if isinstance(received, Outcome):
                    process.join(10)  # it may yet crash where the runtime frees its memory
                    return received if (process.exitcode or 0) >= 0 else _crashed("verify", process.exitcode, log)
                stage = received
        except EOFError:
            process.join()
            return _crashed(stage, process.exitcode, log)
        finally:
            process.kill()
            process.join()
            ours.close()


def _crashed(stage: str, status: int, log: Path) -> Outcome:
    name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    kind = kinds.WRONG_FILE if stage in ("run", "verify") else kinds.RAW_ERROR
    return Outcome(kind, stage, name, "\n".join(lines[-3:]))


def _work(connection: Connection, program: Program, target: Target, runner: Any, log: Path) -> None:
    written = os.open(log, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):  # runtimes write there
        os.dup2(written, stream)
    warnings.simplefilter("ignore")
    tqdm.set_lock(threading.RLock())  # a semaphore of processes would outlive a crash
    import torch

    from qfunc.testing.fuzz.trial import Trial

    torch.set_num_threads(1)
    found = Trial(program, target, runner, connection.send).outcome()
    connection.send(found)
    connection.close()
