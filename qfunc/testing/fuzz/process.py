"""Trials in processes of their own, so that a crash or a hang of a runtime ends one trial only."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tqdm import tqdm

from qfunc.specs import Target
from qfunc.targets.runtimes import ExecuTorchRunner
from qfunc.testing.fuzz import outcome as kinds
from qfunc.testing.fuzz.outcome import Outcome
from qfunc.testing.grammar.program import Program

_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


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


__all__ = ["run_in_process"]
