"""An accelerator whose tensors mix with no others: every law of a device holds there, and every step gives the CPU's bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils import backend_registration

from tests.devices.laws import laws
from tests.devices.steps import steps

ROOT = Path(__file__).parents[2]
LAWS = [name for name, _ in (*laws(), *steps())]


@pytest.fixture(scope="module")
def found() -> dict[str, list[Any]]:
    """What each law found in a process with the accelerator."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this PyTorch has no backends in Python")
    command = [sys.executable, "-m", "tests.devices.accelerated"]
    ran = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('["')]
    assert lines, ran.stderr
    return {name: rest for name, *rest in lines}


@pytest.mark.thorough
@pytest.mark.parametrize("law", LAWS)
def test_an_accelerator_computes_what_the_cpu_computes(law: str, found: dict[str, list[Any]]) -> None:
    counts = found[law]
    assert len(counts) == 2, counts[0]
    compared, wrong = counts
    assert compared
    assert not wrong
