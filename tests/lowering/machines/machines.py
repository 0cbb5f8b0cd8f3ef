"""Machines for tests: those that are set up here, and this Python as another machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from qfunc.lowering import Browser, Node, Qemu
from qfunc.lowering.machines import worker
from qfunc.specs import cpus
from tests.lowering.machines.hidden import Hidden

NOT_EMULATED = (cpus.x86_64_vnni, cpus.x86_64_avxvnni, cpus.wasm_simd)
EMULATED = (Hidden(), *(Qemu(cpu) for cpu in cpus.EVERY if cpu not in NOT_EMULATED))
MACHINES = (*EMULATED, Node(), Browser())


def name(machine: Any) -> str:
    """The name of a machine in the names of tests: the processor, or the program."""
    return type(machine).__name__.lower() if machine.cpu == cpus.wasm_simd else str(machine.cpu)


def runs(target: Any) -> list[Any]:
    """The machines whose processors a target describes."""
    described = {build.cpu for build in target.runtime.builds}
    return [machine for machine in MACHINES if machine.cpu in described]


@frozen
class SamePython:
    """Another process of this Python, or of any command."""

    words: tuple[str, ...] = (sys.executable, str(Path(worker.__file__)))
    lacks: str = ""

    @property
    def cpu(self) -> cpus.Cpu:
        return cpus.x86_64_vnni

    def missing(self) -> str:
        return self.lacks

    def command(self) -> list[str]:
        return [*self.words]

    def environment(self) -> dict[str, str]:
        return {"QFUNC_HERE": "there"}


def require(machine: Any, package: str = "") -> None:
    """Skip the test where a machine, or a package of npm, is not set up."""
    if machine.missing():
        pytest.skip(f"{type(machine).__name__} is not set up")
    if package and machine.cpu == cpus.wasm_simd and not Path(machine.folder, "node/node_modules", package).exists():
        pytest.skip(f"{package} is not set up")


__all__ = ["EMULATED", "MACHINES", "SamePython", "name", "require", "runs"]
