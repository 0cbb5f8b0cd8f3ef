"""Packages with a proof for tests, and their checker in a process that has neither torch nor qfunc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import qfunc
from qfunc.lowering.artifact import Artifact

X = torch.randn(4, 3, 9, 7, generator=torch.Generator().manual_seed(0))


class Residual(nn.Module):
    """Two convolutions, the second with a bypass, and a linear layer on averages."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.other = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).relu()
        return self.head((self.other(y) + y).relu().mean((2, 3)))


def calibrated(target: Any, model: nn.Module | None = None) -> Any:
    """Return a calibrated network: the residual one, unless another is given."""
    torch.manual_seed(0)
    return qfunc.calibrate([X], progress=False)(qfunc.quantize(target)((model or Residual()).eval()))


def package(target: Any, model: nn.Module | None = None, **options: Any) -> Artifact:
    """Return the package of a network for a target."""
    return qfunc.prove(target, **options)(calibrated(target, model), X)


def flipped(content: bytes, place: int, bit: int = 0x40) -> bytes:
    """Return the content with one bit changed."""
    changed = bytearray(content)
    changed[place] ^= bit
    return bytes(changed)


def spoil_tensor(folder: Path, name: str) -> None:
    """Change one byte of a tensor in proof.safetensors."""
    file = folder / "proof.safetensors"
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    file.write_bytes(flipped(content, 8 + size + header[name]["data_offsets"][0], 1))


def run_check(
    folder: Path, tmp_path: Path, python: Sequence[str] = (sys.executable,), environment: Any = ()
) -> tuple[int, str, str]:
    """Run check.py where torch and qfunc cannot be imported; return (exit code, standard output, standard error)."""
    blocked = tmp_path / "blocked"
    blocked.mkdir(exist_ok=True)
    for name in ("torch", "qfunc"):
        (blocked / f"{name}.py").write_text("raise ImportError('not here')\n")
    added = dict(environment)
    path = os.pathsep.join(filter(None, (str(blocked), added.pop("PYTHONPATH", ""))))
    variables = {**os.environ, **added, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    both = "for name in ('torch', 'qfunc'):\n    try:\n        __import__(name)\n    except ImportError:\n        print(name)"
    absent = subprocess.run([*python, "-c", both], env=variables, capture_output=True, text=True, check=True).stdout
    assert absent.split() == ["torch", "qfunc"]
    done = subprocess.run([*python, str(folder / "check.py")], env=variables, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


__all__ = ["Residual", "X", "calibrated", "flipped", "package", "run_check", "spoil_tensor"]
