"""Budgets of latency: each plan is deployed and measured on the runtime, and the best one within the budget is chosen."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import onnx
import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.diagnosis import RunTime
from qfunc.errors import CalibrationError, SpecError
from qfunc.targets.executorch.runner import ExecuTorchRunner
from qfunc.targets.runtimes import LiteRtRunner, NcnnRunner, OnnxRuntimeRunner, OpenVinoRunner
from tests.diagnosis.failures import images, network, outlier_channel


def count(artifacts: Sequence[Any], inputs: Sequence[Tensor]) -> list[float]:
    """A clock that is the same everywhere: a millisecond for each layer with float weights, a tenth for each on integers."""
    return [_count(artifact) for artifact in artifacts]


def _count(artifact: Any) -> float:
    stored = onnx.load_from_string(artifact.files["model.onnx"]).graph.initializer
    weights = [t.data_type for t in stored if len(t.dims) == 4]
    return sum(1e-3 if kind == onnx.TensorProto.FLOAT else 1e-4 for kind in weights)


@pytest.fixture(scope="module")
def report() -> Any:
    torch.manual_seed(0)
    case = outlier_channel()
    return qfunc.diagnose(case.target, case.batches, latency=count, progress=False)(case.model.eval())


def test_each_trial_has_the_latency_of_its_file(report: Any) -> None:
    assert report.base.latency == pytest.approx(3e-4)
    found = {repr(t.plan): t.latency for t in report.trials}
    assert found["edit.skip(edit.name('0'))"] == pytest.approx(1.2e-3)
    assert found["qfunc.equalize(deviations=3.0)"] == pytest.approx(3e-4)
    head = report.sections()[1].head
    assert head[-3:] == ("latency, ms", "of float", "plan")
    assert report.sections()[1].rows[0][-3:-1] == ("0.3", "0.10")  # three layers, of 3 ms in float
    assert report.plain == pytest.approx(3e-3)
    assert report.remark == ""


def test_a_diagnosis_says_that_float_is_faster() -> None:
    """By a clock of a chip that is slow on integers."""

    def slow(artifacts: Sequence[Any], inputs: Sequence[Tensor]) -> list[float]:
        return [1.0 / seconds for seconds in count(artifacts, inputs)]

    torch.manual_seed(0)
    case = outlier_channel()
    report = qfunc.diagnose(case.target, case.batches, latency=slow, progress=False)(case.model.eval())
    assert report.remark in str(report)
    assert report.remark.startswith("no plan is faster than the network in float, which takes 3.333e+05 ms: qfunc.measure_")


@pytest.mark.parametrize("budget", [3.5e-4, 1.25e-3, 2.15e-3, 1.0])
def test_a_budget_of_latency_takes_the_most_accurate_plan_within(report: Any, budget: float) -> None:
    chosen = report.choose(latency=budget)
    within = [t for t in (report.base, *report.trials) if t.latency <= budget]
    assert chosen in within
    assert chosen.recovered == max(t.recovered for t in within if t.integer > 0)
    torch.manual_seed(0)
    case = outlier_channel()
    applied = report.apply(latency=budget)(case.model.eval())
    assert _count(qfunc.deploy(chosen.plan.target(case.target))(applied)) <= budget


def test_a_budget_of_accuracy_takes_the_fastest_plan(report: Any) -> None:
    for least in (0.0, 0.5, 0.9, 0.99):
        chosen = report.choose(recovered=least)
        assert chosen.recovered >= least
        assert chosen.latency == min(t.latency for t in (report.base, *report.trials) if t.recovered >= least)


def test_both_budgets(report: Any) -> None:
    chosen = report.choose(recovered=0.5, latency=1.25e-3)
    assert chosen.recovered >= 0.5
    assert chosen.latency <= 1.25e-3
    nearest = max((t for t in (report.base, *report.trials) if t.latency <= 3.5e-4), key=lambda t: t.recovered)
    with pytest.raises(CalibrationError) as e:
        report.choose(recovered=1.1, latency=3.5e-4)
    assert str(e.value) == (
        f"Diagnosis: found {nearest.recovered:.1%} with {nearest.integer:.1%} on integers, by {nearest.plan!r}, wanted a plan "
        "that recovers 110.0% with any on integers in the given time. Lower recovered, reconstruct "
        "(docs/reconstruction.md) or train the model (docs/training.md)."
    )


def test_a_budget_that_no_plan_meets(report: Any) -> None:
    with pytest.raises(CalibrationError) as e:
        report.choose(latency=1e-4)
    assert str(e.value) == (
        "Diagnosis: found 0.3 ms at least, by as it is, wanted a plan of at most 0.1 ms. Allow more, or take smaller layers or "
        "batches: quantization does not make this network faster on this runtime."
    )


def test_a_diagnosis_without_latencies_has_no_such_budget() -> None:
    torch.manual_seed(0)
    report = qfunc.diagnose(targets.onnxruntime, images(1), progress=False)(network().eval())
    with pytest.raises(CalibrationError) as e:
        report.apply(latency=1.0)
    assert str(e.value) == (
        "Diagnosis, latency: found a diagnosis without latencies, wanted one that measured them. Pass "
        "latency=qfunc.diagnosis.RunTime(target.runtime.runner) to diagnose."
    )
    assert report.sections()[1].head[-2:] == ("weights, KiB", "plan")


def test_wrong_arguments() -> None:
    with pytest.raises(SpecError) as e:
        qfunc.diagnose(targets.onnxruntime, images(1), latency=1.0)  # type: ignore[arg-type]
    assert str(e.value) == (
        "diagnose, latency: found 1.0, wanted a function (artifacts, inputs) -> seconds of each. Write "
        "latency=qfunc.diagnosis.RunTime(target.runtime.runner)."
    )
    with pytest.raises(SpecError, match=r"RunTime\.runner: found None, wanted a runner"):
        RunTime(None)


def test_the_least_of_the_runs_counts() -> None:
    class Slow:
        """A runner without `loaded`, of which the first runs and every third one are slow."""

        calls = 0

        def run(self, artifact: Any, inputs: Any) -> list[Any]:
            self.calls += 1
            time.sleep(0.05 if self.calls <= 2 or self.calls % 3 == 0 else 0.002)
            return []

    runner = Slow()
    assert 0.002 <= RunTime(runner, runs=4, seconds=1e-9)([None], ())[0] < 0.04
    assert runner.calls == 6


def test_artifacts_run_in_turns() -> None:
    """A machine that becomes slower changes no order."""

    class Slower:
        calls: ClassVar[list[str]] = []

        def run(self, artifact: Any, inputs: Any) -> list[Any]:
            self.calls.append(artifact)
            time.sleep((0.001 if artifact == "fast" else 0.01) * (1 + len(self.calls) / 10))
            return []

    fast, slow = RunTime(Slower(), runs=3, seconds=1e-9)(["fast", "slow"], ())
    assert fast < slow
    assert Slower.calls == ["fast", "slow"] * 5


RUNNERS = {
    "onnxruntime": OnnxRuntimeRunner(threads=1), "litert": LiteRtRunner(threads=1), "openvino": OpenVinoRunner(),
    "executorch_xnnpack": ExecuTorchRunner(), "ncnn": NcnnRunner(),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNNERS)
def test_a_model_is_loaded_once_and_computes_as_run_does(name: str) -> None:
    runner: Any = RUNNERS[name]
    if missing := getattr(runner, "missing", lambda: "")():
        pytest.skip(missing)
    torch.manual_seed(0)
    target, batches = getattr(targets, name), images(2)
    artifact = qfunc.deploy(target)(qfunc.calibrate(batches, False)(qfunc.quantize(target)(network().eval())))
    run = runner.loaded(artifact)
    for batch in (batches[0], batches[1], batches[0][:3]):
        assert all((a == b).all() for a, b in zip(run([batch]), runner.run(artifact, [batch]), strict=True))


def test_the_time_is_that_of_the_runtime() -> None:
    """Two networks, of which one does 400 times the work of the other, whatever the processor is better at."""
    torch.manual_seed(0)
    batches, clock = [torch.randn(1, 3, 40, 40)], RunTime(OnnxRuntimeRunner(threads=1), runs=20)
    seconds = {}
    for width in (1, 128):
        net = nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, width, 3)).eval()
        model = qfunc.calibrate(batches, False)(qfunc.quantize(targets.onnxruntime)(net))
        artifact = qfunc.deploy(targets.onnxruntime)(model)
        (seconds[width],) = clock([artifact], batches)
        # An independent measurement: the median of single runs of a session that this test loads.
        session = OnnxRuntimeRunner(threads=1).session(artifact.files["model.onnx"])
        taken = []
        for _ in range(20):
            start = time.perf_counter()
            session.run(batches)
            taken.append(time.perf_counter() - start)
        assert 0.1 < seconds[width] / statistics.median(taken) < 10  # other work may share the processor
    assert 5 * seconds[1] < seconds[128]
