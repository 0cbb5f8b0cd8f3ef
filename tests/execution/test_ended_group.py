"""`destroy_process_group` ends a group that steps have used, so that no thread of it is left when the process ends."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import qfunc
from tests.onnxruntime_target import ONNXRUNTIME
from tests.processes import start_processes


def work(rank: int, folder: str) -> None:
    """The only process of its group."""
    dist.init_process_group("gloo", init_method=Path(folder, "meet").as_uri(), rank=rank, world_size=1)
    group = weakref.ref(dist.group.WORLD)
    steps = qfunc.compose(qfunc.quantize(ONNXRUNTIME), qfunc.calibrate([torch.randn(2, 4)]), qfunc.emulate(ONNXRUNTIME))
    steps(torch.export.export(nn.Linear(4, 4), (torch.randn(2, 4),)))
    dist.destroy_process_group()
    Path(folder, "answer").write_text("ended" if group() is None else "alive")


@pytest.mark.thorough
def test_a_destroyed_group_is_not_kept(tmp_path: Path) -> None:
    start_processes(work, (str(tmp_path),), 1)
    assert (tmp_path / "answer").read_text() == "ended"
