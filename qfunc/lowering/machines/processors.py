"""Other processors on which this machine runs the runtimes: by QEMU, and WebAssembly by Node and in a browser."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from attrs import field, frozen

from qfunc.specs import cpus
from qfunc.specs._check import refuse, text
from qfunc.specs.cpus import Cpu

_HERE = Path(__file__).parent
_MODELS = {
    cpus.x86_64_sse4: "Nehalem", cpus.x86_64_avx2: "Haswell", cpus.arm64: "cortex-a57", cpus.arm64_dotprod: "cortex-a76",
    cpus.arm64_i8mm: "max",
}  # fmt: skip
"""QEMU's names of processors."""


def _folder() -> str:
    return os.environ.get("QFUNC_MACHINES", "build/machines")


def _is_emulated(instance: Any, attribute: Any, value: Any) -> None:
    if value not in _MODELS:
        wanted = "one of " + ", ".join(map(str, _MODELS))
        raise refuse(instance, "cpu", value, wanted, "Use one of specs.cpus that QEMU emulates.")


@frozen
class Qemu:
    """Linux programs for another processor, run by QEMU's user mode on x86-64 Linux: some 20 times slower.

    Args:
        cpu: The processor. Those of x86-64 run this Python and its packages; those of arm64 run the ones in `folder`.
        folder: Where `.ci/machines FOLDER` of a checkout was run; by default the variable QFUNC_MACHINES.
    Raises:
        SpecError: a processor that QEMU does not emulate.

    >>> Qemu(cpus.arm64_dotprod, "machines")
    Qemu(cpu=Cpu('arm64', features='dotprod'), folder='machines')
    """

    cpu: Cpu = field(validator=_is_emulated)
    folder: str = field(factory=_folder, validator=text())

    def missing(self) -> str:
        """Return what is not set up, or ""."""
        needed = [self._emulator(), *([self._python()] if self.cpu.architecture == "arm64" else [])]
        return next((f"no file {path}" for path in needed if not path.exists()), "")

    def command(self) -> list[str]:
        """Return the command that starts the worker."""
        arm = self.cpu.architecture == "arm64"
        root = ["-L", str(self._root())] if arm else []
        python = str(self._python()) if arm else sys.executable
        return [str(self._emulator()), "-cpu", _MODELS[self.cpu], *root, python, str(_HERE / "worker.py")]

    def environment(self) -> dict[str, str]:
        """Return the variables that the worker has besides the caller's own."""
        if self.cpu.architecture == "arm64":
            return {"PYTHONPATH": str(Path(self.folder).resolve() / "site"), "PYTHONNOUSERSITE": "1"}
        # NumPy's OpenBLAS takes AVX for granted where it does not know the processor.
        return {"OPENBLAS_CORETYPE": "Nehalem"} if "avx2" not in self.cpu.features else {}

    def _root(self) -> Path:
        return Path(self.folder).resolve() / "roots" / str(self.cpu)

    def _python(self) -> Path:
        return self._root() / "usr/bin/python3.11"

    def _emulator(self) -> Path:
        name = {"arm64": "qemu-aarch64", "x86-64": "qemu-x86_64"}[self.cpu.architecture]
        return Path(self.folder).resolve() / "qemu/usr/bin" / name


@frozen
class Node:
    """WebAssembly with SIMD, run by Node: onnxruntime-web and LiteRT.js.

    Args:
        folder: Where `.ci/machines FOLDER` of a checkout was run; by default the variable QFUNC_MACHINES.

    >>> Node("machines")
    Node(folder='machines')
    """

    folder: str = field(factory=_folder, validator=text())

    @property
    def cpu(self) -> Cpu:
        """The processor, `cpus.wasm_simd`."""
        return cpus.wasm_simd

    def missing(self) -> str:
        """Return what is not set up, or ""."""
        return _web_missing(self.folder, "node")

    def command(self) -> list[str]:
        """Return the command that starts the worker."""
        return ["node", str(_HERE / "worker.mjs"), str(Path(self.folder).resolve() / "node")]

    def environment(self) -> dict[str, str]:
        """Return the variables that the worker has besides the caller's own."""
        return {}


def _program() -> str:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next((name for name in names if shutil.which(name)), names[0])


@frozen
class Browser:
    """WebAssembly with SIMD in Chromium without a window, on Linux or macOS: onnxruntime-web and LiteRT.js, as in a page.

    Args:
        folder: Where `.ci/machines FOLDER` of a checkout was run; by default the variable QFUNC_MACHINES.
        program: Chromium or Chrome, a name or a path; by default the first that is installed.

    >>> Browser("machines", "chromium")
    Browser(folder='machines', program='chromium')
    """

    folder: str = field(factory=_folder, validator=text())
    program: str = field(factory=_program, validator=text())

    @property
    def cpu(self) -> Cpu:
        """The processor, `cpus.wasm_simd`."""
        return cpus.wasm_simd

    def missing(self) -> str:
        """Return what is not set up, or ""."""
        return _web_missing(self.folder, self.program)

    def command(self) -> list[str]:
        """Return the command that starts the worker."""
        return [sys.executable, str(_HERE / "browser.py"), str(Path(self.folder).resolve() / "node"), self.program]

    def environment(self) -> dict[str, str]:
        """Return the variables that the worker has besides the caller's own."""
        return {}


def _web_missing(folder: str, program: str) -> str:
    package = Path(folder) / "node/node_modules/onnxruntime-web"
    return ("" if package.exists() else f"no folder {package}") if shutil.which(program) else f"no program {program}"
