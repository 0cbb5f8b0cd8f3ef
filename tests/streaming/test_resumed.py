"""A stream that was killed goes on behind the last finished layer, and writes the same bytes."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import qfunc
from qfunc.streaming.piece import part_of
from qfunc.streaming.weights import Weights
from tests.lowering.gguf.decoders import decoder
from tests.processes import exit_codes
from tests.streaming.checkpoints import Shape, deployed, files, target_of

SHAPE = Shape(decoder("llama", blocks=3), lengths=(5,))
LEFT: list[int] = []
"""The number of layers that `interrupted` rounds before it ends this process."""
ROUNDED: list[int] = []


def interrupted(batches: Any, float_batches: Any = None) -> Any:
    """GPTQ, which counts its calls, and kills this process in the end."""
    ROUNDED.append(1)
    if LEFT and len(ROUNDED) > LEFT[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return qfunc.gptq(batches, progress=False, float_batches=float_batches)


def run(folder: Path, states: Any = qfunc.StatesInMemory(), rounding: Any = interrupted) -> Path:
    """Stream the shards of a folder."""
    target = target_of("W4A16", SHAPE)
    options: dict[str, Any] = {"progress": False, "rounding": rounding, "states": states}
    return qfunc.stream(target, folder / "shards", folder / "out", SHAPE.batches, **options)(SHAPE.on_meta())


def interrupted_run(folder: Path, states: Any, after: int) -> None:
    """Stream, and kill this process after some layers."""
    LEFT.append(after)
    run(folder, states)


def killed(folder: Path, states: Any, after: int) -> None:
    """Stream in another process, which kills itself after some layers."""
    assert exit_codes(interrupted_run, [(folder, states, after)]) == [-signal.SIGKILL]


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="SIGKILL is of POSIX")
@pytest.mark.parametrize(
    ("states", "again"), [(qfunc.StatesInMemory(), 4), (qfunc.StatesOnDisk(), 2)], ids=["in memory", "on disk"]
)
def test_the_resumed_file_has_the_same_bytes(states: Any, again: int, tmp_path: Path) -> None:
    """With states on disk, the two layers that were finished are not rounded again: the third and the head are."""
    SHAPE.write(tmp_path / "shards")
    killed(tmp_path, states, after=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.parts", "shards"]
    ROUNDED.clear()

    out = run(tmp_path, states)

    assert len(ROUNDED) == again
    assert files(out) == deployed(target_of("W4A16", SHAPE), SHAPE, interrupted)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "shards"]


@pytest.mark.thorough
def test_without_a_rounding_the_float_network_leads_to_the_next_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last layer of FP8 has a static scale of its inputs."""
    target, folder = target_of("FP8", SHAPE), SHAPE.write(tmp_path / "shards")
    made = qfunc.stream(target, folder, tmp_path / "out", SHAPE.batches, progress=False)
    monkeypatch.setattr("qfunc.streaming.stream.part_of", _fails_after(2, part_of))
    with pytest.raises(KeyboardInterrupt):
        made(SHAPE.on_meta())
    monkeypatch.undo()

    assert files(made(SHAPE.on_meta())) == deployed(target, SHAPE)


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="SIGKILL is of POSIX")
def test_after_a_kill_between_a_part_and_the_states_behind_it_the_layer_is_computed_again(tmp_path: Path) -> None:
    SHAPE.write(tmp_path / "shards")
    killed(tmp_path, qfunc.StatesOnDisk(), after=1)
    before = (tmp_path / "out.parts" / "states-00001.safetensors").read_bytes()
    killed(tmp_path, qfunc.StatesOnDisk(), after=1)  # now the second layer is finished
    (tmp_path / "out.parts" / "states-00002.safetensors").unlink()
    (tmp_path / "out.parts" / "states-00001.safetensors").write_bytes(before)
    ROUNDED.clear()

    out = run(tmp_path, qfunc.StatesOnDisk())

    assert len(ROUNDED) == 3
    assert files(out) == deployed(target_of("W4A16", SHAPE), SHAPE, interrupted)


def _fails_after(count: int, function: Any) -> Any:
    calls: list[int] = []

    def failing(*args: Any) -> Any:
        calls.append(1)
        if len(calls) > count:
            raise KeyboardInterrupt
        return function(*args)

    return failing


def test_the_weights_of_one_piece_at_a_time_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peak memory is that of a layer: when a piece is loaded, no float weight of another one is left."""
    alive: list[weakref.ref[Any]] = []
    load, counts = Weights.load, list[int]()

    def watched(self: Weights, module: nn.Module, *args: Any, **options: Any) -> None:
        gc.collect()
        counts.append(sum(ref() is not None for ref in alive))
        load(self, module, *args, **options)
        alive.extend(weakref.ref(p) for p in module.parameters() if not p.is_meta)

    SHAPE.write(tmp_path / "shards")
    monkeypatch.setattr(Weights, "load", watched)

    run(tmp_path, rounding=None)

    assert max(counts) <= 1  # the table of tokens, which stays for the batches
    assert len(alive) >= sum(1 for _ in SHAPE.on_meta().parameters())
