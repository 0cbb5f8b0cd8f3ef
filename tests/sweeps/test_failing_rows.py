"""A step that fails is the reason in its row, and the other rows are measured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve, frozen
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import qfunc
from qfunc import targets
from qfunc.errors import CalibrationError
from qfunc.graph.view import QuantizedModel
from qfunc.sweeps.report import SweepRow
from qfunc.sweeps.stored import Stored

CHOSEN = {"first": targets.onnxruntime, "fails": targets.tensorrt, "last": targets.vitis}
BATCHES = [torch.randn(16, 8, generator=torch.Generator().manual_seed(0))]


def model() -> nn.Module:
    """The same network each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 4)).eval()


def swept(**arguments: Any) -> dict[str, SweepRow]:
    """Return the rows by name."""
    return {row.name: row for row in qfunc.sweep(CHOSEN, BATCHES, progress=False, **arguments)(model()).rows}


def at_the_second(calibrated: Any, act: Any) -> Any:
    """Act on the model of the target that is to fail."""
    target = QuantizedModel(calibrated).record.target
    return act() if target is not None and target.name == "tensorrt" else calibrated


def broken() -> Any:
    """Fail as a function of a user."""
    raise RuntimeError("no such layer\nin two lines")


def nothing() -> None:
    """Return no model."""


def interrupted() -> None:
    """End the sweep."""
    raise KeyboardInterrupt


def dead() -> None:
    """End the process, as the kernel does if there is too little memory."""
    os._exit(9)


def of_any_model(act: Any) -> Any:
    """Return a `then`."""
    return partial(at_the_second, act=act)


def predicted(target: Any, act: Any) -> Any:
    """A `predict`."""
    return lambda calibrated: act() if target.name == "tensorrt" else calibrated


FAILURES: dict[str, tuple[dict[str, Any], str]] = {
    "then raises": (
        {"then": of_any_model(broken)},
        "sweep, then: found RuntimeError: no such layer, wanted a calibrated model",
    ),
    "then returns nothing": (
        {"then": of_any_model(nothing)},
        "sweep, then: found a NoneType, wanted a calibrated model",
    ),
    "then returns a float model": (
        {"then": of_any_model(model)},
        "sweep, then: found a Sequential that is not quantized, wanted a calibrated model",
    ),
    "predict raises": (
        {"predict": partial(predicted, act=broken)},
        "sweep, predict: found RuntimeError: no such layer, wanted a network",
    ),
    "predict returns nothing": (
        {"predict": partial(predicted, act=nothing)},
        "sweep, predict: found None, wanted a network",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_the_other_rows_are_measured(case: str) -> None:
    arguments, why = FAILURES[case]
    rows, whole = swept(**arguments), swept()
    assert rows["fails"] == SweepRow("fails", why=why)
    for name in ("first", "last"):
        assert rows[name] == whole[name]
        assert rows[name].why == ""


def test_an_interrupt_ends_the_sweep() -> None:
    with pytest.raises(KeyboardInterrupt):
        swept(then=of_any_model(interrupted))


class OneAtOnce(Executor):
    """Runs the first task, and leaves the others in its queue."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the first task."""
        future: Future[Any] = Future()
        self.futures.append(future)
        if len(self.futures) == 1:
            future.set_running_or_notify_cancel()
            try:
                future.set_result(function(*args, **kwargs))
            except BaseException as e:
                future.set_exception(e)
        return future


@pytest.mark.parametrize("place", ["a row", "the folder"])
def test_what_ends_the_sweep_takes_the_other_rows_from_the_executor(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = OneAtOnce()

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Stored, "write", full)
    then = (lambda calibrated: interrupted()) if place == "a row" else None
    with pytest.raises(KeyboardInterrupt if then else OSError):
        swept(then=then, executor=executor, folder=tmp_path)
    assert [future.cancelled() for future in executor.futures] == [False, True, True]


@pytest.mark.thorough
def test_a_process_that_dies_leaves_the_finished_rows(tmp_path: Path) -> None:
    whole = swept()
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        rows = swept(then=of_any_model(dead), executor=executor, folder=tmp_path)
        after = swept(executor=executor)  # it runs no more tasks
    why = "sweep, executor: BrokenProcessPool: "
    assert rows["first"] == whole["first"]
    assert all(rows[name].value is None and rows[name].why.startswith(why) for name in ("fails", "last"))
    assert all(row.why.startswith(why) for row in after.values())


def test_a_function_that_no_process_can_get_is_the_reason_of_each_row() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        rows = swept(then=lambda calibrated: calibrated, executor=executor)
    assert all(row.why.startswith("sweep, executor: ") and "lambda" in row.why for row in rows.values())


CALLS: list[int] = []


@frozen
class BrokenRunner:
    """A runner that fails after some runs."""

    good: int

    def missing(self) -> str:
        """Return nothing: it is installed."""
        return ""

    def run(self, artifact: Any, inputs: Any) -> Any:
        """Fail as a runtime that is another version than the user thinks."""
        CALLS.append(1)
        if len(CALLS) > self.good:
            raise TypeError("run() takes one argument")
        return inputs


@pytest.mark.parametrize("good", [0, 3])
def test_a_runner_that_fails_gives_no_time(good: int) -> None:
    CALLS.clear()
    fails = evolve(targets.onnxruntime, runtime=evolve(targets.onnxruntime.runtime, runner=BrokenRunner(good)))
    run = qfunc.sweep({"fails": fails, "last": targets.onnxruntime}, BATCHES, runs=3, progress=False)
    report = run(model())
    assert report["fails"].why == "TypeError: run() takes one argument"
    assert report["fails"].seconds is None
    assert report["fails"].value == report["last"].value
    assert (report["last"].seconds or 0) > 0
    assert len(CALLS) == good + 1


def while_there(calibrated: Any, path: str) -> Any:
    """Fail while a file is there, such as one that fills the disk."""
    if os.path.exists(path):
        raise OSError("no space")
    return calibrated


def test_a_stored_failure_is_tried_again(tmp_path: Path) -> None:
    then = partial(while_there, path=str(tmp_path / "file"))
    (tmp_path / "file").touch()
    rows = swept(then=then, folder=tmp_path / "out")
    assert all("OSError: no space" in row.why for row in rows.values())
    (tmp_path / "file").unlink()
    rows = swept(then=then, folder=tmp_path / "out")
    assert rows == swept()
    (tmp_path / "file").touch()
    assert swept(then=then, folder=tmp_path / "out") == rows  # nothing runs again


def test_a_row_without_files_is_no_failure(tmp_path: Path) -> None:
    chosen = {"a": evolve(targets.onnxruntime, lowering=None)}
    run = qfunc.sweep(
        chosen, BATCHES, then=partial(counted, path=str(tmp_path / "calls")), folder=tmp_path / "out", progress=False
    )
    assert run(model()) == run(model())
    assert len((tmp_path / "calls").read_text()) == 1


def counted(calibrated: Any, path: str) -> Any:
    """Write that it was called."""
    with open(path, "a", encoding="utf-8") as file:
        file.write("x")
    return calibrated


class Once:
    """Batches that can be iterated once."""

    def __init__(self) -> None:
        self.left = iter(BATCHES * 3)

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield what is left."""
        return self.left


def test_batches_that_are_used_up_are_refused_before_calibration() -> None:
    run = qfunc.sweep(CHOSEN, Once(), metric=lambda outputs, _: outputs[0].argmax(1) == 0, calibration=Once())
    with pytest.raises(CalibrationError) as caught:
        run(model())
    assert str(caught.value) == (
        "sweep, batches: found no batches, wanted at least one. Pass a list or a DataLoader that has batches."
    )


class Stream(IterableDataset[torch.Tensor]):
    """A stream without data."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield nothing."""
        return iter(())


EMPTY: dict[str, Any] = {
    "list": [],
    "data set": DataLoader(TensorDataset(torch.zeros(0, 8)), 4),
    "stream": DataLoader(Stream(), 4),
}


@pytest.mark.parametrize("name", ["batches", "calibration"])
@pytest.mark.parametrize("kind", EMPTY)
def test_no_batches_are_refused_before_anything_runs(name: str, kind: str) -> None:
    class Never(nn.Module):
        """A model that must not run."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError

    with pytest.raises(CalibrationError) as caught:
        qfunc.sweep(CHOSEN, **{"batches": BATCHES, name: EMPTY[kind]}, progress=False)(Never())
    wanted = f"sweep, {name}: found no batches, wanted at least one. Pass a list or a DataLoader that has batches."
    assert str(caught.value) == wanted
    if kind != "stream":
        with pytest.raises(CalibrationError, match=f"^sweep, {name}: found no batches"):
            qfunc.sweep(CHOSEN, **{"batches": BATCHES, name: EMPTY[kind]})
        with pytest.raises(CalibrationError, match=f"^diagnose, {name}: found no batches"):
            qfunc.diagnose(targets.onnxruntime, **{"batches": BATCHES, name: EMPTY[kind]})
