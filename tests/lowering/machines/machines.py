"""Machines for tests: those that are set up here, and this Python as another machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from qfunc.lowering import Node, Qemu
from qfunc.lowering.machines import worker
from qfunc.specs import cpus

MACHINES = tuple(Node() if cpu == cpus.wasm_simd else Qemu(cpu) for cpu in cpus.EVERY if cpu != cpus.x86_64_vnni)


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


def require(machine: Any) -> None:
    """Skip the test where a machine is not set up."""
    if machine.missing():
        pytest.skip(f"{type(machine).__name__} is not set up")


__all__ = ["MACHINES", "SamePython", "require"]
