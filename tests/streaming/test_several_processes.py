"""Two processes that stream their own batches into their own folders write the files of one process with all batches."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import qfunc
from qfunc.errors import CalibrationError
from qfunc.streaming.parts import Parts
from tests.lowering.gguf.decoders import decoder
from tests.processes import start_processes
from tests.streaming.checkpoints import Shape, files, target_of

SHAPE = Shape(decoder("llama", blocks=2), lengths=(5, 6, 7, 8))
OWN = (slice(0, 2), slice(2, 4))
ROUNDING = partial(qfunc.gptq, progress=False)


def run(folder: Path, output: str, batches: Any) -> Path:
    """Stream the shards of a folder."""
    options: dict[str, Any] = {"progress": False, "rounding": ROUNDING, "states": qfunc.StatesOnDisk()}
    target = target_of("W8A8", SHAPE)  # activations have static ranges, which are merged, too
    return qfunc.stream(target, folder / "shards", folder / output, batches, **options)(SHAPE.on_meta())


def work(rank: int, folder: str) -> None:
    """One of the processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=Path(folder, "meet").as_uri(), rank=rank, world_size=2)
    text = ""
    try:
        run(Path(folder), f"out-{rank}", SHAPE.batches[OWN[rank]])
    except CalibrationError as error:
        text = str(error)
    Path(folder, f"error-{rank}").write_text(text)
    dist.destroy_process_group()


@pytest.mark.thorough
def test_all_write_the_files_of_one_process(tmp_path: Path) -> None:
    SHAPE.write(tmp_path / "shards")
    start_processes(work, (str(tmp_path),), 2)
    wanted = files(run(tmp_path, "one", SHAPE.batches))
    assert files(tmp_path / "out-0") == wanted
    assert files(tmp_path / "out-1") == wanted
    assert files(run(tmp_path, "alone", SHAPE.batches[OWN[0]])) != wanted  # a rank's own batches give others


@pytest.mark.thorough
def test_processes_that_would_begin_at_unlike_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SHAPE.write(tmp_path / "shards")
    add = Parts.add

    def stopped(self: Parts, i: int, part: Any) -> None:
        if i == 1:
            raise KeyboardInterrupt
        add(self, i, part)

    monkeypatch.setattr(Parts, "add", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "out-0", SHAPE.batches[OWN[0]])
    start_processes(work, (str(tmp_path),), 2)
    for rank in (0, 1):
        assert (tmp_path / f"error-{rank}").read_text() == (
            "stream, ranks 0 and 1: found 1 finished parts and 0 finished parts, wanted the same in all processes. "
            f"Delete the folders of finished parts, such as {tmp_path}/out-{rank}.parts, and start again."
        )
