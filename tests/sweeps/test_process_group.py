"""In a process group of several processes `sweep` and `diagnose` are refused: they would mix the ranks' batches, or wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import qfunc
from qfunc.errors import SpecError
from qfunc.execution.distributed import alone
from tests.onnxruntime_target import ONNXRUNTIME
from tests.processes import start_processes

FOUND = "found a default process group of 2 processes, wanted one process. Call it in one process, before init_process_group"
WANTED = {
    "sweep": f"sweep: {FOUND}, and share the rows by executor=ProcessPoolExecutor(4).",
    "diagnose": f"diagnose: {FOUND}.",
}


def steps() -> dict[str, Any]:
    """Return functions that make the steps."""
    batches = [torch.randn(4, 8, generator=torch.Generator().manual_seed(0))]
    return {
        "sweep": lambda: qfunc.sweep([ONNXRUNTIME], batches, progress=False),
        "diagnose": lambda: qfunc.diagnose(ONNXRUNTIME, batches, progress=False),
    }


def message(call: Any) -> str:
    """Return the message of the error of a call."""
    try:
        call()
    except SpecError as e:
        return str(e)
    return "no error"


def work(rank: int, folder: str) -> None:
    """One of two processes."""
    made = {name: make() for name, make in steps().items()}
    dist.init_process_group("gloo", init_method=Path(folder, "meet").as_uri(), rank=rank, world_size=2)
    dist.barrier()  # a process that ends while the other one still connects breaks its connection
    found = {}
    for name, make in steps().items():
        found[name] = message(make), message(lambda name=name: made[name](nn.Linear(8, 4)))
    if rank == 0:  # a step that takes this process out of the group, as `check_target` does
        with alone():
            found["alone"] = qfunc.sweep([ONNXRUNTIME], [torch.ones(4, 8)], progress=False)(nn.Linear(8, 4)).rows[0].why
    torch.save(found, Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()


@pytest.mark.thorough
def test_several_processes_are_refused(tmp_path: Path) -> None:
    start_processes(work, (str(tmp_path),), 2)
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        for name, wanted in WANTED.items():
            assert found[name] == (wanted, wanted)
    assert torch.load(tmp_path / "0.pt", weights_only=False)["alone"] == ""
