"""This processor without its AVX-512: what QEMU does not emulate, AVX-VNNI, at full speed.

The worker loads copies of the runtimes. In these each `cpuid` is an instruction that raises a signal, whose handler, hidden.c,
answers as a processor without AVX-512. So the runtimes choose the kernels that they have for one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from attrs import frozen

from qfunc.lowering.machines import worker
from qfunc.lowering.runner_support import has
from qfunc.specs import cpus

PACKAGES = ("onnxruntime", "ai_edge_litert", "executorch", "ncnn")
CPUID, TRAP = b"\x0f\xa2", b"\x0f\x0b"


def without_cpuid(content: bytes, path: Path) -> bytes:
    """The library with a trap in place of each instruction `cpuid`, which are found where objdump has instructions."""
    with subprocess.Popen(["objdump", "-d", "-w", "--no-show-raw-insn", path], stdout=subprocess.PIPE) as listed:
        lines = subprocess.run(["grep", "-P", r"\tcpuid\b"], stdin=listed.stdout, capture_output=True, check=False).stdout
    loads = subprocess.run(["readelf", "-lW", path], capture_output=True, text=True, check=True).stdout
    segments = [[int(n, 16) for n in row] for row in re.findall(r"^ +LOAD +(\w+) (\w+) \w+ (\w+)", loads, re.MULTILINE)]
    patched = bytearray(content)
    for address in (int(line.split(b":")[0], 16) for line in lines.splitlines()):
        (at,) = (address - start + offset for offset, start, size in segments if start <= address < start + size)
        assert patched[at : at + 2] == CPUID
        patched[at : at + 2] = TRAP
    return bytes(patched)


def copied(folder: Path) -> None:
    """Write the copies of the runtimes that are installed, and the handler."""
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        for place in spec.submodule_search_locations or () if spec else ():
            for source in (Path(place), Path(f"{place}.libs")):
                if source.exists():
                    shutil.copytree(source, folder / source.name, symlinks=True)
    for path in (p for p in folder.rglob("*.so*") if p.is_file() and not p.is_symlink()):
        if CPUID in (content := path.read_bytes()):
            path.write_bytes(without_cpuid(content, path))
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", folder / "hidden.so", source], check=True)


@frozen
class Hidden:
    """This processor without AVX-512; it must have AVX-VNNI.  `folder` is that of the other machines."""

    folder: str = os.environ.get("QFUNC_MACHINES", "build/machines")

    @property
    def cpu(self) -> cpus.Cpu:
        return cpus.x86_64_avxvnni

    def missing(self) -> str:
        if not Path(self.folder).exists():
            return f"no folder {self.folder}"
        lacks = next((p for p in ("gcc", "objdump", "readelf") if shutil.which(p) is None), "")
        return f"no program {lacks}" if lacks else "" if has("avx_vnni") and sys.platform == "linux" else "no AVX-VNNI"

    def command(self) -> list[str]:
        return [sys.executable, str(Path(worker.__file__))]

    def environment(self) -> dict[str, str]:
        folder = Path(self.folder).resolve() / "hidden"
        if not (folder / "hidden.so").exists():
            shutil.rmtree(folder, ignore_errors=True)
            copied(folder)
        return {"LD_PRELOAD": str(folder / "hidden.so"), "PYTHONPATH": str(folder)}


__all__ = ["Hidden"]
