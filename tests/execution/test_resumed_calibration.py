"""calibrate(resume=): a calibration that goes on has the statistics of one that was never stopped."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import CalibrationError, FileError, SpecError
from qfunc.execution import observers, progress, stored_statistics
from qfunc.files.tensors import digest
from qfunc.files.values import decode, encode
from qfunc.specs import edit
from tests.execution.processes import ESTIMATORS, Last, made
from tests.transforms.checks import same_state, state


def batches(stop: int = -1) -> Iterator[Tensor]:
    """Five batches of several sizes; nothing after the first `stop` ones."""
    for i in range(5):
        if i == stop:
            raise KeyboardInterrupt
        yield torch.randn(40 + i, 5, generator=torch.Generator().manual_seed(i)) * (1 + i)


@pytest.fixture(autouse=True)
def _written_after_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_statistics, "INTERVAL", 0.0)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the batches that the network ran."""
    found, original = list[int](), observers.Observer.read

    def read(self: Any, arguments: Any, number: int) -> Any:
        found.append(number)
        return original(self, arguments, number)

    monkeypatch.setattr(observers.Observer, "read", read)
    return found


@pytest.mark.parametrize("stop", [1, 4])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_it_goes_on_after_the_last_stored_batch(name: str, stop: int, tmp_path: Path, runs: list[int]) -> None:
    file, quantized = tmp_path / "statistics.safetensors", made(ESTIMATORS[name])
    wanted = qfunc.calibrate(batches(), progress=False)(quantized)
    with pytest.raises(KeyboardInterrupt):
        qfunc.calibrate(batches(stop), progress=False, resume=file)(quantized)
    assert file.is_file()
    runs.clear()
    found = qfunc.calibrate(batches(), progress=False, resume=file)(quantized)
    assert runs == list(range(stop + 1, 6))
    assert same_state(state(found), state(wanted))
    assert not file.exists()


def test_several_models_and_the_sizes_of_inputs(tmp_path: Path) -> None:
    file, net = tmp_path / "statistics.safetensors", nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 2)).eval()
    models = tuple(qfunc.quantize(t)(net) for t in (targets.onnxruntime, targets.tensorrt))
    wanted = qfunc.calibrate(batches(), progress=False)(models)
    with pytest.raises(KeyboardInterrupt):
        qfunc.calibrate(batches(3), progress=False, resume=file)(models)
    found = qfunc.calibrate(batches(), progress=False, resume=file)(models)
    for one, other, target in zip(found, wanted, (targets.onnxruntime, targets.tensorrt), strict=True):
        assert same_state(state(one), state(other))
        assert qfunc.deploy(target)(one).files == qfunc.deploy(target)(other).files


def stopped(file: Path, quantized: Any) -> None:
    """Leave the statistics of two batches."""
    with pytest.raises(KeyboardInterrupt):
        qfunc.calibrate(batches(2), progress=False, resume=file)(quantized)


@pytest.mark.parametrize("change", ["weights", "estimator", "target"])
def test_statistics_of_another_model_are_refused(change: str, tmp_path: Path) -> None:
    file, quantized = tmp_path / "statistics.safetensors", made()
    stopped(file, quantized)
    other = made(ESTIMATORS["Mse"]) if change == "estimator" else made()
    if change == "weights":
        next(p for p in other.parameters() if p.ndim == 2).data[0] += 1
    if change == "target":
        net = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 2))
        other = qfunc.quantize(edit.activations(bits=4)(targets.academic(8, 8)))(net)
    with pytest.raises(CalibrationError) as caught:
        qfunc.calibrate(batches(), progress=False, resume=file)(other)
    assert str(caught.value) == (
        f"calibrate, resume='{file}': found statistics of another model, of other weights or estimators, or of another number "
        "of processes, wanted those of this calibration. Delete it, or choose another file."
    )


def test_statistics_of_another_number_of_processes_are_refused(tmp_path: Path) -> None:
    class Group:
        def __init__(self, size: int) -> None:
            self.size = lambda: size

        def rank(self) -> int:
            return 0

    file, groups = tmp_path / "statistics.safetensors", [Group(size) for size in (2, 3)]
    two, again, three = (stored_statistics.StoredStatistics(file, [], g) for g in (groups[0], *groups))  # type: ignore[arg-type]
    two.save(4)
    assert again.load() == 4
    with pytest.raises(CalibrationError, match="of another number of processes"):
        three.load()


def other_batches(changed: int) -> list[Tensor]:
    """The five batches, of which one has another last value."""
    found = list(batches())
    found[changed][-1, -1] += 1
    return found


@pytest.mark.parametrize(("changed", "found"), [(0, "another first batch"), (1, "other batches among the first 2")])
def test_other_batches_than_the_stored_ones_are_refused(changed: int, found: str, tmp_path: Path, runs: list[int]) -> None:
    file, quantized = tmp_path / "statistics.safetensors", made()
    stopped(file, quantized)
    runs.clear()
    with pytest.raises(CalibrationError) as caught:
        qfunc.calibrate(other_batches(changed), progress=False, resume=file)(quantized)
    assert str(caught.value) == (
        f"calibrate, resume='{file}': found {found} than in its statistics, wanted those of the calibration that was stopped. "
        "Give the same batches in the same order: a loader that shuffles needs the seed of the first run."
    )
    assert not runs
    assert file.is_file()
    qfunc.calibrate(other_batches(2), progress=False, resume=file)(quantized)  # it was not in the statistics


def test_batches_of_another_order_are_refused(tmp_path: Path) -> None:
    """As those of a loader that shuffles without a seed."""
    file, quantized = tmp_path / "statistics.safetensors", made()
    data = torch.randn(600, 5)
    stopped_at = iter([*data[:100].split(10)])

    def some() -> Iterator[Tensor]:
        yield from stopped_at
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        qfunc.calibrate(some(), progress=False, resume=file)(quantized)
    shuffled = torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)  # type: ignore[arg-type]
    with pytest.raises(CalibrationError, match="another first batch"):
        qfunc.calibrate(shuffled, progress=False, resume=file)(quantized)


def test_a_large_batch_is_recognised_by_a_sample(tmp_path: Path, runs: list[int]) -> None:
    file, quantized = tmp_path / "statistics.safetensors", made()
    large = [torch.randn(60_000, 5, dtype=torch.float32) for _ in range(2)]

    def some(given: list[Tensor]) -> Iterator[Tensor]:
        yield given[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        qfunc.calibrate(some(large), progress=False, resume=file)(quantized)
    for other in (large[0].flip(0), large[0][:-1], large[0].T.contiguous().T + 0.0001, large[0].double()):
        with pytest.raises(CalibrationError, match="another first batch"):
            qfunc.calibrate([other, large[1]], progress=False, resume=file)(quantized)
    runs.clear()
    qfunc.calibrate(large, progress=False, resume=file)(quantized)
    assert runs == [2]


def test_the_progress_counts_stored_batches_as_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, quantized = tmp_path / "statistics.safetensors", made()
    stopped(file, quantized)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    qfunc.calibrate(list(batches()), resume=file)(quantized)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"calibrate: batch {n} of 5" for n in range(1, 6)]
    assert ["/" in line for line in lines] == [False, False, True, True, True]


def test_fewer_batches_than_stored(tmp_path: Path) -> None:
    file, quantized = tmp_path / "statistics.safetensors", made()
    stopped(file, quantized)
    with pytest.raises(CalibrationError) as caught:
        qfunc.calibrate(list(batches())[:1], progress=False, resume=file)(quantized)
    assert str(caught.value) == (
        f"calibrate, resume='{file}': found 1 batches, wanted more than the 2 whose statistics it has. Give the batches of "
        "the calibration that was stopped, from the first one on."
    )


def test_a_search_for_qparams_that_is_stopped(tmp_path: Path, runs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """As it may take minutes."""
    file, quantized = tmp_path / "statistics.safetensors", made(ESTIMATORS["Mse"])
    wanted = qfunc.calibrate(batches(), progress=False)(quantized)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(observers.Observer, "qparams", interrupted)
        with pytest.raises(KeyboardInterrupt):
            qfunc.calibrate(batches(), progress=False, resume=file)(quantized)
    runs.clear()
    found = qfunc.calibrate(batches(), progress=False, resume=file)(quantized)
    assert not runs
    assert same_state(state(found), state(wanted))
    assert not file.exists()


FULL = "wanted a file that can be written. Make space there, or choose another place; an older file there is unchanged."


def test_a_full_disk_leaves_the_last_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, quantized = tmp_path / "statistics.safetensors", made()
    stopped(file, quantized)
    content = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(FileError) as caught:
        qfunc.calibrate(batches(), progress=False, resume=file)(quantized)
    assert str(caught.value) == f"{file}: found no space left on device, {FULL}"
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {file.name: content}


def test_a_file_that_cannot_be_written_is_refused_before_the_first_batch(tmp_path: Path, runs: list[int]) -> None:
    file = tmp_path / ("x" * 250)  # a draft beside it has a longer name
    with pytest.raises(FileError) as caught:
        qfunc.calibrate(batches(), progress=False, resume=file)(made())
    assert str(caught.value) == f"{file}: found {os.strerror(errno.ENAMETOOLONG).lower()}, {FULL}"
    assert not runs


def test_wrong_paths(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as refused:
        qfunc.calibrate(batches(), resume=3)  # type: ignore[arg-type]
    assert str(refused.value) == "calibrate, resume: found 3, wanted the path of a file. Write resume='statistics.safetensors'."
    for path in (tmp_path, tmp_path / "missing" / "file"):
        with pytest.raises(CalibrationError) as caught:
            qfunc.calibrate(batches(), progress=False, resume=path)(made())
        wanted = "found no path of a file in an existing folder, wanted the path of a file. Create the folder first."
        assert str(caught.value) == f"calibrate, resume='{path}': {wanted}"


@frozen
class Kept(Last):
    """A state that has a set."""

    def init(self, scheme: Any, like: Tensor) -> Any:
        return {1, 2}

    def update(self, old: Any, x: Tensor, scheme: Any) -> Any:
        return old


def test_a_state_that_cannot_be_stored(tmp_path: Path) -> None:
    file = tmp_path / "statistics.safetensors"
    with pytest.raises(CalibrationError) as caught:
        qfunc.calibrate(batches(), progress=False, resume=file)(made(Kept()))
    assert "found a set in the state of an estimator, wanted tensors, numbers, texts" in str(caught.value)


@pytest.mark.parametrize("change", ["values", "class", "cut", "bit"])
def test_damaged_files(change: str, tmp_path: Path) -> None:
    file, quantized = tmp_path / "statistics.safetensors", made()
    stopped(file, quantized)
    content, tensors = file.read_bytes(), load_file(file)
    metadata = stored_statistics.safe_open(file, "pt").metadata()
    key, values = metadata["key"], metadata["values"]
    if change == "values":
        values = '{"tuple": [1]}'
    if change == "class":
        values = values.replace("minmax:Range", "other:Range")
    save_file(tensors, file, {"key": key, "values": values, "digest": digest(tensors, key, values)})
    if change == "cut":
        file.write_bytes(content[: len(content) // 2])
    if change == "bit":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(FileError) as caught:
        qfunc.calibrate(batches(), progress=False, resume=file)(quantized)
    wanted = "found other bytes than were written, wanted the statistics of a calibration. Write the file again: it is damaged"
    assert (wanted in str(caught.value)) is (change == "bit")


def test_each_rank_has_a_file_of_its_own(tmp_path: Path) -> None:
    class Group:
        def rank(self) -> int:
            return 2

        def size(self) -> int:
            return 3

    group: Any = Group()
    stored = stored_statistics.StoredStatistics(tmp_path / "statistics.safetensors", [], group)
    assert stored.path == tmp_path / "statistics-2.safetensors"


def test_a_file_is_written_at_most_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    now = [0.0]
    stored = stored_statistics.StoredStatistics(tmp_path / "file", [], None, lambda: now[0])
    for seconds, written in ((59.0, False), (60.0, True)):
        now[0] = seconds
        stored.save(1)
        assert (tmp_path / "file").exists() is written
    (tmp_path / "file").unlink()
    now[0] = 119.0
    stored.save(2)
    assert not (tmp_path / "file").exists()


LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=5)
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(NESTED)
def test_nested_values_come_back(value: Any) -> None:
    tensors = dict[str, Tensor]()
    found = decode(encode(value, tensors), tensors, {}, "file")
    assert found == value
    assert repr(found) == repr(value)
