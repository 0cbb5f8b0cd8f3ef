"""sweep: the rows are what each step gives alone; refusals, processes, and sweeps that go on."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
import torch
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import CalibrationError, FileError, QfuncError, SpecError
from qfunc.specs import Op, Refuse, edit
from qfunc.sweeps.report import Sweep, SweepRow

COARSE = edit.weights(bits=3)(targets.tensorrt)
CHOSEN = {"onnxruntime": targets.onnxruntime, "tensorrt": targets.tensorrt, "3 bits": COARSE}
REFUSES = evolve(targets.tensorrt, legality=(Refuse(Op("conv"), because="B.", do="Do."),))


class Net(nn.Module):
    """A convolution and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, 5]."""
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))


def model() -> nn.Module:
    """The same network each time."""
    torch.manual_seed(0)
    return Net().eval()


def labelled(count: int = 3) -> list[tuple[Tensor, Tensor]]:
    """Images, and the classes that the float network gives them."""
    images = [torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(count)]
    with torch.no_grad():
        return [(x, model()(x).argmax(1)) for x in images]


def top1(outputs: list[Tensor], batch: Any) -> Tensor:
    """One for each image of the right class."""
    return outputs[0].argmax(1) == batch[1]


def decibels(found: Tensor, wanted: Tensor) -> float:
    """The signal-to-noise ratio of outputs."""
    found, wanted = found.detach().double(), wanted.detach().double()
    return float(10 * torch.log10(wanted.square().sum() / (found - wanted).square().sum()))


def alone(target: Any, batches: Any) -> tuple[float, int]:
    """The accuracy and the bytes by the single steps."""
    images = [x for x, _ in batches]
    calibrated = qfunc.calibrate(images, progress=False)(qfunc.quantize(target)(model()))
    right = torch.cat([calibrated(x).argmax(1) == y for x, y in batches])
    files = qfunc.deploy(target)(calibrated).files
    return float(right.double().mean()), sum(len(c) for n, c in files.items() if n != "qfunc.json")


def test_the_rows_are_those_of_the_single_steps() -> None:
    batches = labelled()
    report = qfunc.sweep(CHOSEN, batches, metric=top1, progress=False)(model())
    assert [row.name for row in report.rows] == list(CHOSEN)
    assert report.metric == "top1"
    assert report.best == 1.0
    for name, target in CHOSEN.items():
        assert (report[name].value, report[name].size) == alone(target, batches)
        assert report[name].integer == 1.0
        assert (report[name].why, report[name].seconds) == ("", None)


def test_predict_scores_the_emulation_and_refuses_targets_without_public_arithmetic() -> None:
    batches = [x for x, _ in labelled(1)]
    report = qfunc.sweep([targets.onnxruntime, targets.tensorrt], batches, predict=qfunc.emulate, progress=False)(model())
    calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(targets.onnxruntime)(model()))
    x, exact = batches[0], qfunc.emulate(targets.onnxruntime)(calibrated)
    assert report["onnxruntime"].value == pytest.approx(decibels(exact(x), model()(x)), abs=1e-6)  # sums in another order
    assert report["tensorrt"].value is None
    assert report["tensorrt"].why.startswith("emulate(tensorrt)")


def test_a_target_that_refuses_the_model_has_a_row_with_the_reason() -> None:
    batches = [x for x, _ in labelled(1)]
    report = qfunc.sweep({"a": REFUSES, "b": targets.tensorrt}, batches, progress=False)(model())
    assert report["a"] == SweepRow("a", why=report["a"].why)
    assert "B." in report["a"].why
    assert report["b"].value is not None
    nothing = qfunc.sweep({"a": REFUSES}, batches, progress=False)(model())
    assert nothing.rows == (report["a"],)
    assert nothing.front == ()


def test_then_is_applied_to_each_calibrated_model() -> None:
    batches = [x for x, _ in labelled(1)]
    report = qfunc.sweep([COARSE], batches, then=qfunc.correct_bias(batches, progress=False), progress=False)(model())
    calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(COARSE)(model()))
    corrected = qfunc.correct_bias(batches, progress=False)(calibrated)
    wanted = decibels(corrected(batches[0]), model()(batches[0]))
    assert report.rows[0].value == pytest.approx(wanted, abs=1e-6)  # sums in another order


def loky() -> Any:
    """An executor of another library with the same interface."""
    return pytest.importorskip("joblib.externals.loky").get_reusable_executor(max_workers=1)


EXECUTORS = {
    "threads": partial(ThreadPoolExecutor, 2),
    "processes": partial(ProcessPoolExecutor, 1, get_context("spawn")),
    "loky": loky,
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", EXECUTORS)
def test_executors_give_the_same_rows(kind: str) -> None:
    batches = labelled(1)
    here = qfunc.sweep(CHOSEN, batches, metric=top1, progress=False)(model())
    with EXECUTORS[kind]() as executor:
        there = qfunc.sweep(CHOSEN, batches, metric=top1, executor=executor, progress=False)(model())
    assert there.rows == here.rows


def test_a_sweep_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    batches, calls = labelled(1), list[int]()

    def counted(outputs: list[Tensor], batch: Any, stop: int) -> Tensor:
        calls.append(1)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return top1(outputs, batch)

    here = qfunc.sweep(CHOSEN, batches, metric=top1, progress=False)(model())
    with pytest.raises(KeyboardInterrupt):  # the float network is the first call, and the second target the third
        qfunc.sweep(CHOSEN, batches, metric=partial(counted, stop=3), folder=tmp_path, progress=False)(model())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["onnxruntime", "onnxruntime.json"]
    calls.clear()
    metric = partial(counted, stop=0)
    rows = qfunc.sweep(CHOSEN, batches, metric=metric, folder=tmp_path / "2", progress=False)(model()).rows
    assert (rows, len(calls)) == (here.rows, 4)
    calls.clear()
    assert qfunc.sweep(CHOSEN, batches, metric=metric, folder=tmp_path / "2", progress=False)(model()).rows == rows
    assert len(calls) == 1  # the float network
    assert (tmp_path / "2" / "3 bits" / "qfunc.json").is_file()


CHANGED = ("target", "weights", "batches", "more batches", "calibration", "functions", "files")


@pytest.mark.parametrize("change", CHANGED)
def test_rows_of_other_values_are_measured_again(change: str, tmp_path: Path) -> None:
    batches, net = [x for x, _ in labelled(1)], model()
    run = partial(qfunc.sweep, folder=tmp_path, progress=False)
    run({"a": targets.tensorrt}, batches)(net)
    stored = json.loads((tmp_path / "a.json").read_text())
    stored["row"]["value"] = 123.0
    (tmp_path / "a.json").write_text(json.dumps(stored))
    assert run({"a": targets.tensorrt}, batches)(net)["a"].value == 123.0
    target, then, calibration = targets.tensorrt, None, None
    if change == "more batches":
        batches = [x for x, _ in labelled(4)]
    if change == "calibration":
        calibration = [x for x, _ in labelled(2)]
    if change == "target":
        target = COARSE
    if change == "weights":
        net.get_parameter("head.bias").data.add_(1)
    if change == "batches":
        batches = [batches[0] * 2]
    if change == "functions":
        then = qfunc.correct_bias([x for x, _ in labelled(1)], progress=False)
    if change == "files":
        for path in (tmp_path / "a").iterdir():
            path.unlink()
        (tmp_path / "a").rmdir()
    assert run({"a": target}, batches, then=then, calibration=calibration)(net)["a"].value != 123.0


def test_an_edited_metric_is_measured_again(tmp_path: Path) -> None:
    def metric_of(text: str) -> Any:
        return eval(f"lambda outputs, batch: {text}")

    texts = ("outputs[0].sum(1)", "outputs[0].sum(1) * 2", "outputs[0].mean(1)")
    for text in (*texts, *reversed(texts)):
        run = partial(qfunc.sweep, [COARSE], [x for x, _ in labelled(1)], metric=metric_of(text), progress=False)
        assert run(folder=tmp_path)(model()).rows == run()(model()).rows


def test_a_function_without_a_digest_is_measured_again_with_a_warning(tmp_path: Path) -> None:
    lock, calls, batches = Lock(), list[int](), [x for x, _ in labelled(1)]

    def locked(outputs: list[Tensor], batch: Any) -> Tensor:
        with lock:
            calls.append(1)
            return outputs[0].sum(1)

    run = qfunc.sweep([COARSE], batches, metric=locked, folder=tmp_path, progress=False)
    for _ in range(2):
        calls.clear()
        text = r"^sweep, metric: no digest can be made of a lock, so rows are measured again\.$"
        with pytest.warns(UserWarning, match=text):
            run(model())
        assert len(calls) == 2  # the float network and the target


PROGRAM = """
import sys, torch, qfunc
from qfunc import targets
from torch.utils.data import DataLoader
torch.manual_seed(0)
model, loader = torch.nn.Sequential(torch.nn.Linear(8, 4)).eval(), DataLoader(torch.randn(64, 8), 16)
class Metric:
    def __init__(self, names): self.names = names
    def __call__(self, outputs, batch): return outputs[0].sum(1)
then = qfunc.correct_bias(loader, progress=False)
run = qfunc.sweep([targets.tensorrt], loader, metric=Metric({"a", "b", "c"}), then=then, folder=sys.argv[1], progress=False)
print(run(model).rows[0].value)
"""


@pytest.mark.thorough
def test_another_process_goes_on(tmp_path: Path) -> None:
    def value() -> float:
        command = [sys.executable, "-W", "error::UserWarning", "-c", PROGRAM, str(tmp_path)]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    value()
    stored = json.loads((tmp_path / "tensorrt.json").read_text())
    stored["row"]["value"] = 123.0
    (tmp_path / "tensorrt.json").write_text(json.dumps(stored))
    assert value() == 123.0


def test_times_are_those_of_runtimes_that_run_here() -> None:
    batches = [x for x, _ in labelled(1)]
    report = qfunc.sweep([targets.onnxruntime, targets.snpe], batches, runs=2, progress=False)(model())
    assert (report["onnxruntime"].seconds or 0) > 0
    assert report["snpe"].seconds is None
    assert report["snpe"].why == "no time: no runner"
    assert "ms" in str(report).splitlines()[1]


CASES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "none": ([], {}, "sweep, targets: found a list, wanted at least one target. Pass [targets.litert, targets.onnxruntime]"),
    "one": (targets.tensorrt, {}, "sweep, targets: found a Target, wanted at least one target."),
    "twice": (
        [COARSE, targets.tensorrt],
        {},
        "sweep, targets: found two targets of the name 'tensorrt', wanted different names",
    ),
    "text": (["litert"], {}, "sweep: found 'litert', wanted a Target"),
    "metric": ([COARSE], {"metric": 3}, "sweep, metric: found 3, wanted a function"),
    "runs": ([COARSE], {"runs": -1}, "sweep, runs: found -1, wanted 0 or a positive integer. Write runs=30."),
    "executor": ([COARSE], {"executor": 4}, "sweep, executor: found 4, wanted an executor with submit."),
    "class": (
        [COARSE],
        {"executor": ThreadPoolExecutor},
        "sweep, executor: found the class ThreadPoolExecutor, wanted an executor with submit.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_arguments(case: str) -> None:
    chosen, arguments, text = CASES[case]
    with pytest.raises(SpecError) as caught:
        qfunc.sweep(chosen, [torch.zeros(1, 3, 8, 8)], **arguments)
    assert str(caught.value).startswith(text)


def test_batches_must_be_iterated_again() -> None:
    with pytest.raises(CalibrationError) as caught:
        qfunc.sweep([COARSE], iter([torch.zeros(1)]))
    wanted = "sweep, batches: found an iterator, wanted batches that can be iterated again."
    assert str(caught.value) == f"{wanted} Put them into a list, or pass a DataLoader."


def test_damaged_and_impossible_folders(tmp_path: Path) -> None:
    batches = [x for x, _ in labelled(1)]
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError) as caught:
        qfunc.sweep([COARSE], batches, folder=tmp_path / "file", progress=False)(model())
    wanted = f"sweep, folder '{tmp_path / 'file'}': found a file, wanted a folder. Choose the path of a folder."
    assert str(caught.value) == wanted
    with pytest.raises(FileError) as caught:
        qfunc.sweep([COARSE], batches, folder=tmp_path / "file" / "inner", progress=False)(model())
    assert str(caught.value) == wanted.replace("file'", "file/inner'").replace("a file", "not a directory")
    with pytest.raises(FileError) as caught:
        qfunc.sweep({"x" * 245: COARSE}, batches, folder=tmp_path, progress=False)(model())
    assert "found file name too long, wanted a file that can be written" in str(caught.value)
    (tmp_path / "tensorrt.json").write_text("{")
    with pytest.raises(FileError) as caught:
        qfunc.sweep([COARSE], batches, folder=tmp_path, progress=False)(model())
    assert "found a damaged row" in str(caught.value)
    with pytest.raises(FileError) as caught:
        qfunc.sweep({"a/b": COARSE}, batches, folder=tmp_path, progress=False)(model())
    assert str(caught.value) == ("sweep, targets: found 'a/b', wanted names of files. Pass a dict of short names to targets.")


def test_an_error_of_a_metric_is_that_of_sweep() -> None:
    with pytest.raises(QfuncError) as caught:
        qfunc.sweep([COARSE], [torch.randn(2, 3, 8, 8)], metric=lambda outputs, batch: "high", progress=False)(model())
    assert str(caught.value).startswith("sweep, metric: found 'high', wanted one number per example.")


@pytest.mark.parametrize(("value", "found"), [(float("nan"), "a mean of nan"), ([], "no numbers")])
def test_a_metric_without_a_number(value: Any, found: str) -> None:
    batches = [torch.randn(2, 3, 8, 8)]
    with pytest.raises(CalibrationError) as caught:
        qfunc.sweep([COARSE], batches, metric=lambda outputs, batch: value, progress=False)(model())
    reason = f"sweep, metric: found {found}, wanted one number per example"
    do = "Return a tensor of numbers or booleans, such as outputs[0].argmax(1) == batch[1]."
    assert str(caught.value) == f"{reason}. {do}"
    best = model()(batches[0])
    of_float = qfunc.sweep(
        [COARSE], batches, metric=lambda outputs, _: 1.0 if outputs[0].equal(best) else value, progress=False
    )
    report = of_float(model())
    assert report.rows == (SweepRow("tensorrt", why=reason),)
    assert report.front == ()


def test_outputs_that_are_not_finite() -> None:
    batches = [torch.randn(2, 3, 8, 8)]
    report = qfunc.sweep([COARSE], [batches[0] * torch.inf], calibration=batches, progress=False)(model())
    assert report.rows == (SweepRow("tensorrt", why="sweep, outputs: found an SQNR of nan, wanted finite outputs"),)


NUMBERS = st.integers(0, 3)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=8))
def test_the_front_is_the_pareto_front(points: list[tuple[int, int]]) -> None:
    rows = tuple(SweepRow(str(i), float(v), 1.0, s) for i, (v, s) in enumerate(points))
    report = Sweep("metric", None, 0, rows)
    wanted = {str(i) for i, (v, s) in enumerate(points) if not any((a >= v and b <= s) and (a, b) != (v, s) for a, b in points)}
    assert {row.name for row in report.front} == wanted
    for row in report.front:
        assert f"<title>{row.name}:" in report.html()
