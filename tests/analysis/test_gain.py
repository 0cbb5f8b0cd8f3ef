"""What `verify` says of a file beside the float network: errors of outputs, latency, size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve, frozen
from torch import Tensor, nn

import qfunc
from qfunc.analysis.gain import Gain, Latency, OutputError, OutputErrors
from qfunc.analysis.metrics import Agreement
from qfunc.analysis.verification_report import Report
from qfunc.errors import VerifyError
from qfunc.specs import Everything, Target, edit
from qfunc.targets import tosa
from qfunc.targets.runtimes import OnnxRuntimeRunner
from qfunc.transforms.verification import float_file, gains
from tests.onnxruntime_target import ONNXRUNTIME

FLOAT_FILE = float_file.float_file


@pytest.fixture
def float_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` deploys and times float files."""
    monkeypatch.setattr(gains, "float_file", FLOAT_FILE)


class Net(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.conv, self.linear, self.scale = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(4, 3), scale

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        image = self.conv(x).relu()
        return self.linear(image.mean((2, 3))) * self.scale, image


def verified(net: nn.Module, batches: list[Tensor], target: Target = ONNXRUNTIME, **choices: Any) -> Report:
    calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(net.eval()))
    return qfunc.verify(target, **choices)(calibrated, batches)


def batches() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 2, 6, 6) for _ in range(2)]


def test_errors_are_those_of_the_runtime_against_the_float_network() -> None:
    """By NumPy, in float64, from what ONNX Runtime returns."""
    net, data = Net(), batches()
    calibrated = qfunc.calibrate(data, progress=False)(qfunc.quantize(ONNXRUNTIME)(net.eval()))
    report = qfunc.verify(ONNXRUNTIME)(calibrated, data)
    run, artifact = OnnxRuntimeRunner(), qfunc.deploy(ONNXRUNTIME)(calibrated)
    with torch.no_grad():
        real = [net(x) for x in data]
    for index, output in enumerate(report.gain.outputs):
        x = np.concatenate([r[index].numpy().ravel() for r in real]).astype(np.float64)
        y = np.concatenate([np.ravel(run.run(artifact, [b])[index]) for b in data]).astype(np.float64)
        # Float sums of the two networks may have another order; a relative error of 1e-6 is far below that of 8 bits.
        assert output.sqnr == pytest.approx(10 * np.log10((x**2).sum() / ((y - x) ** 2).sum()), abs=1e-3)
    scores = np.concatenate([run.run(artifact, [b])[0] for b in data])
    assert report.top1 == np.mean(scores.argmax(1) == torch.cat([r[0] for r in real]).numpy().argmax(1))
    assert report.sqnr == min(o.sqnr for o in report.gain.outputs)
    assert [o.top1 is None for o in report.gain.outputs] == [False, True]


def test_a_reference_takes_the_place_of_the_float_network() -> None:
    net = Net()
    other = Net(scale=2.0).eval()
    other.load_state_dict(net.state_dict())
    plain, report = verified(net, batches()), verified(net, batches(), reference=other)
    assert plain.gain.outputs[0].sqnr > 25
    assert report.gain.outputs[0].sqnr == pytest.approx(6.02, abs=0.5)  # half of the reference
    assert report.gain.outputs[1] == plain.gain.outputs[1]
    assert report.verdict == plain.verdict


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        (3, "3"),
        (Net().train(), "a model in training mode"),
        (lambda x: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda x: x, "outputs [[4, 2, 6, 6]]"),
    ],
    ids=["no function", "training", "failing", "other outputs"],
)
def test_a_reference_that_is_none_is_refused(reference: Any, found: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verified(Net(), batches(), reference=reference)
    assert caught.value.found == found
    assert "reference" in caught.value.where


def test_a_channel_that_became_one_value_is_said() -> None:
    errors = OutputErrors()
    errors.add(
        [torch.arange(24.0).reshape(2, 3, 4)], [torch.arange(24.0).reshape(2, 3, 4) * torch.tensor([1.0, 0, 0])[:, None]]
    )
    (row,) = errors.rows()
    assert (row.constant, row.channels) == (2, 3)
    assert Gain((row,)).remarks[-1] == "output 0: one value in 2 of 3 channels, where the float network has several"


def test_values_that_differ_between_batches_are_not_constant() -> None:
    errors = OutputErrors()
    for value in (1.0, 2.0):
        errors.add([torch.full((2, 1), value)], [torch.full((2, 1), value)])
    assert errors.rows()[0].constant == 0


def test_a_low_sqnr_names_the_quantizers_that_lose_most() -> None:
    net = Net()
    report = verified(net, batches(), edit.weights(bits=2)(ONNXRUNTIME))
    assert (report.sqnr or 0.0) < 20
    assert {name for name, _ in report.gain.losses[:2]} == {"conv.weight", "linear.weight"}
    assert [loss for _, loss in report.gain.losses] == sorted(loss for _, loss in report.gain.losses)
    assert report.gain.remarks[0].startswith("below 20 dB: the quantizers that lose most are ")
    assert report.gain.remarks[0] in str(report)
    assert "qfunc.diagnose" in report.html()


def test_kernels_that_lose_more_than_the_quantizers_are_named() -> None:
    """A runtime whose sums saturate; the quantizers alone would keep more than 30 dB."""

    def saturating(artifact: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [y.clamp(max=0.3 * float(y.max())) for y in net(inputs[0])]

    net = Net().eval()
    calibrated = qfunc.calibrate(batches(), progress=False)(qfunc.quantize(ONNXRUNTIME)(net))
    with torch.no_grad():
        report = qfunc.verify(ONNXRUNTIME, runtime=saturating)(calibrated, batches())
    assert (report.sqnr or 0.0) < 20
    assert 30 < (report.gain.simulated or 0.0) < 60
    assert report.gain.remarks[0] == (
        f"below 20 dB, where the simulation has {report.gain.simulated:.1f} dB: the runtime's kernels lose the rest; if their "
        "sums saturate on this processor, edit.weights(bits=7) keeps them exact"
    )


@frozen
class Sleeping:
    """A runner whose files of integers take `factor` times as long as its other files; the time is that of a clock."""

    factor: float
    noise: tuple[float, ...] = (0.0,)
    threads: int = 3

    def run(self, artifact: Any, inputs: Sequence[Any]) -> Any:
        return OnnxRuntimeRunner().run(artifact, inputs)

    def loaded(self, artifact: Any) -> Callable[[Sequence[Any]], Any]:
        coded = b"QuantizeLinear" in artifact.files["model.onnx"]
        seconds, noise = 0.01 * (self.factor if coded else 1.0), itertools.cycle(self.noise if coded else (0.0,))
        return lambda inputs: CLOCK.advance(seconds * (1 + next(noise)), inputs)


class Clock:
    now = 0.0
    sizes: list[int]

    def advance(self, seconds: float, inputs: Sequence[Any]) -> None:
        self.now += seconds
        self.sizes = [len(x) for x in inputs]


CLOCK = Clock()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the measurement is `CLOCK`."""
    monkeypatch.setattr(float_file.time, "perf_counter", lambda: CLOCK.now)
    return CLOCK


def of_runner(runner: Any) -> Target:
    return evolve(ONNXRUNTIME, runtime=evolve(ONNXRUNTIME.runtime, runner=runner, builds=()))


@pytest.mark.usefixtures("float_files")
def test_the_latency_is_a_ratio_of_one_example(clock: Clock) -> None:
    start = clock.now
    report = verified(Net(), batches(), of_runner(Sleeping(1.5)))
    assert report.latency.ratio == pytest.approx(1.5)
    assert report.latency.spread == pytest.approx(0, abs=1e-9)
    assert (report.latency.threads, clock.sizes) == (3, [1])
    assert clock.now - start <= float_file.SECONDS
    assert report.gain.remarks[-1].startswith("slower than the float file: qfunc.measure_placement(")
    assert "1.50 x the latency of the float file (3 threads, spread 0 %)" in str(report)


@frozen
class Profiled(Sleeping):  # type: ignore[misc]  # a test's own
    """A runner whose runtime takes longer for one unit on integers, less for another, and moves a tensor besides."""

    def profiled(self, artifact: Any, inputs: Sequence[Any]) -> dict[str, float]:
        assert [len(x) for x in inputs] == [1]
        if b"QuantizeLinear" in artifact.files["model.onnx"]:
            return {"conv": 5e-4, "conv.codes": 1e-4, "fc": 1e-5, "Transpose": 1.0}
        return {"relu": 2e-4, "fc": 2e-5}


@pytest.mark.usefixtures("float_files", "clock")
def test_the_units_that_cost_most_are_named_where_the_file_is_slower() -> None:
    slow, fast = (verified(Net(), batches(), of_runner(Profiled(factor))).gain for factor in (1.5, 0.5))
    assert [(c.unit, pytest.approx(c.seconds), pytest.approx(c.plain)) for c in slow.costs] == [("conv", 6e-4, 2e-4)]
    assert "the units that cost most are conv (600 us, 200 us in float); qfunc.measure_placement(" in slow.remarks[-1]
    assert fast.costs == ()


@pytest.mark.usefixtures("float_files", "clock")
def test_a_busy_machine_gives_no_ratio() -> None:
    report = verified(Net(), batches(), of_runner(Sleeping(1.0, noise=(0.0, 0.5, 0.9))))
    assert report.latency.ratio is None
    assert (report.latency.spread or 0.0) > 0.2
    assert report.latency.why.endswith("as on a busy machine")


@pytest.mark.usefixtures("float_files", "clock")
def test_files_that_take_too_long_have_no_ratio() -> None:
    report = verified(Net(), batches(), of_runner(Sleeping(100.0)))
    assert report.latency == Latency(threads=3, why="fewer than 3 runs of both files fit into 2 s")


@frozen
class Failing(Sleeping):  # type: ignore[misc]  # a test's own
    def loaded(self, artifact: Any) -> Callable[[Sequence[Any]], Any]:
        return lambda inputs: 1 / 0


@pytest.mark.usefixtures("float_files")
def test_a_runner_that_fails_while_it_is_timed_is_said() -> None:
    report = verified(Net(), batches(), of_runner(Failing(1.0)))
    assert report.latency.why == "the runtime failed: ZeroDivisionError: division by zero"
    assert report.size_ratio is not None


@pytest.mark.usefixtures("float_files")
def test_the_size_is_that_of_the_files() -> None:
    net, data = Net(), batches()
    report = verified(net, data, latency=False)
    files = []
    for target in (ONNXRUNTIME, edit.skip(Everything())(ONNXRUNTIME)):
        calibrated = qfunc.calibrate(data, progress=False)(qfunc.quantize(target)(net))
        files.append(len(qfunc.deploy(target)(calibrated).files["model.onnx"]))
    # Names of nodes that differ: the float network of the report has the batch norm and the relu of the calibrated model.
    assert report.size_ratio == pytest.approx(files[0] / files[1], rel=0.05)
    assert report.latency == Latency(why="it was not asked for")


@pytest.mark.usefixtures("float_files")
def test_a_function_is_not_timed() -> None:
    run = OnnxRuntimeRunner().run
    report = verified(Net(), batches(), runtime=lambda artifact, inputs: run(artifact, inputs))
    assert report.latency == Latency(why="the runtime is a function")


@pytest.mark.usefixtures("float_files")
def test_a_runtime_of_integers_alone_has_no_float_file() -> None:
    data = [x[:1] for x in batches()]
    run = Recorded([[y.detach().numpy() for y in Net()(x)] for x in data])
    report = verified(Net(), data, tosa, runtime=run)
    assert report.latency.why.startswith("tosa has no float file (CONV_2D of real values")
    assert report.size_ratio is None


class Recorded:
    """A runtime that returns given outputs."""

    def __init__(self, outputs: list[list[Any]]) -> None:
        self.outputs = iter(outputs)

    def __call__(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        return next(self.outputs)


def test_an_equal_output_has_no_number_of_decibels() -> None:
    row = OutputError("output 0", Agreement(1, 1.0, 0.0, 1.0, 1.0, 0.0))
    assert math.isinf(row.sqnr)
    assert str(Gain((row,))).startswith("equal to the float network")


@pytest.mark.thorough
@pytest.mark.usefixtures("float_files")
def test_the_ratio_of_a_file_to_itself_is_one() -> None:
    """A float target deploys the float file twice; on a quiet machine the ratio is 1, on a busy one there is none."""
    target = edit.skip(Everything())(ONNXRUNTIME)
    report = verified(nn.Sequential(nn.Conv2d(2, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3)), [torch.randn(1, 2, 48, 48)], target)
    assert report.latency.ratio is None or 0.6 < report.latency.ratio < 1.6  # other work may stand in the way of one file
