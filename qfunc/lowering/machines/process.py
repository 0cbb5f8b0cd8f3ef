"""Processes on other processors that keep models open, one for each machine."""

from __future__ import annotations

import inspect
import os
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

import numpy as np

from qfunc.errors import VerifyError, first_line
from qfunc.lowering.machines.worker import receive, send
from qfunc.specs._check import refuse
from qfunc.specs._values import mutability_error
from qfunc.specs.cpus import Cpu


@runtime_checkable
class Machine(Protocol):
    """A processor on which this machine starts processes."""

    @property
    def cpu(self) -> Cpu:
        """The processor."""
        ...

    def command(self) -> list[str]:
        """Return the command that starts the worker."""
        ...

    def environment(self) -> dict[str, str]:
        """Return the variables that the worker has besides the caller's own."""
        ...

    def missing(self) -> str:
        """Return what is not set up, or ""."""
        ...


def is_machine(instance: Any, attribute: Any, value: Any) -> None:
    """The value must be a machine, or None for this one."""
    if value is not None and (isinstance(value, type) or not isinstance(value, Machine) or mutability_error(value)):
        do = "Give Qemu(cpus.arm64_dotprod), Node() or Browser(), or leave it out."
        raise refuse(instance, attribute.name, value, "a machine or None", do)


class WorkerProcess:
    """A running worker; it ends with this process."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.closed, self.count = machine, list[int](), 0
        if missing := machine.missing():
            raise _not_set_up(machine, missing)
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        pipe, environment = subprocess.PIPE, {**os.environ, "OMP_NUM_THREADS": "1", **machine.environment()}
        self.process: Any = subprocess.Popen(
            machine.command(), stdin=pipe, stdout=pipe, stderr=self.log, env=environment, start_new_session=True
        )
        weakref.finalize(self, _end, self.process, self.log)

    def call(self, header: dict[str, Any], arrays: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
        """Return the answer to one call.

        Raises:
            RuntimeError: what the runtime raised.
            VerifyError: the process has ended, or has not the runtime.
        """
        closed = [self.closed.pop() for _ in range(len(self.closed))]
        try:
            send(self.process.stdin, {**header, "closed": closed}, arrays)
            answer, found = receive(self.process.stdout)
        except (EOFError, OSError) as e:
            raise self._ended(e) from e
        if "missing" in answer:
            raise _not_set_up(self.machine, answer["missing"])
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer, found

    def _ended(self, error: Exception) -> VerifyError:
        self.process.wait()
        self.log.seek(0)
        said = self.log.read().decode(errors="replace").strip().splitlines()
        found = said[-1] if said else first_line(error)
        do = "Run the model on this machine first; then the runtime there fails, or the program that runs it."
        return VerifyError(where=repr(self.machine), found=f"the process ended: {found}", wanted="an answer", do=do)


def _not_set_up(machine: Machine, found: str) -> VerifyError:
    do = "Run .ci/machines FOLDER in a checkout, and set QFUNC_MACHINES=FOLDER; install Node, npm and Chromium as programs."
    return VerifyError(where=repr(machine), found=found, wanted="one that is set up", do=do)


def _end(process: Any, log: Any) -> None:
    with suppress(OSError):  # what was not sent to a process that has ended
        process.stdin.close()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
    log.close()


_RUNNING = dict[tuple[Machine, int], WorkerProcess]()


def start(machine: Machine) -> WorkerProcess:
    """Return the process of a machine, which the first call starts, and a call after it has ended starts again."""
    key = machine, os.getpid()  # a forked process has none of its own
    if key not in _RUNNING or _RUNNING[key].process.poll() is not None:
        _RUNNING[key] = WorkerProcess(machine)
    return _RUNNING[key]


class RemoteSession:
    """A model that is open in another process, with the attributes and results of the `Session` that it stands for."""

    def __init__(self, machine: Machine, kind: Any, files: Sequence[bytes], options: dict[str, Any]) -> None:
        self.process = start(machine)
        self.process.count += 1
        self.number = self.process.count
        header = {"file": inspect.getfile(kind), "session": self.number, "options": options}
        answer, (saved,) = self.process.call(header, [np.frombuffer(f, np.uint8) for f in files])
        self.facts: dict[str, Any] = answer["facts"]
        self.saved: bytes = saved.tobytes()
        weakref.finalize(self, self.process.closed.append, self.number)

    @property
    def names(self) -> list[str]:
        """The names of the inputs."""
        return list(self.facts["names"])

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs."""
        return list(self.facts["outputs"])

    def run(self, inputs: Sequence[Any], **options: Any) -> list[Any]:
        """Return the outputs for one batch."""
        return self.process.call({"session": self.number, "options": options}, inputs)[1]


def opened(machine: Machine | None, kind: Any, *files: bytes, **options: Any) -> Any:
    """Return a session of `kind`, or its like on another machine.

    Args:
        machine: The machine; None for this one.
        kind: A class `Session` in a file that imports NumPy and the runtime alone, with `facts`, `saved` and `run`.
        files: What it loads.
        options: Its keywords, values of JSON.
    """
    return kind(*files, **options) if machine is None else RemoteSession(machine, kind, files, options)
