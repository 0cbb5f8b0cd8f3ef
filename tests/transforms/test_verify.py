"""verify: any runtime behind run(artifact, inputs); no difference escapes the verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import FileError, VerifyError
from qfunc.lowering.artifact import Artifact
from qfunc.specs import Op, edit
from tests.conformance.modules import Apply
from tests.onnxruntime_target import ONNXRUNTIME
from tests.transforms.checks import calibrated
from tests.transforms.nets import NAMES, DictInput

TARGET = ONNXRUNTIME
Run = Callable[[Artifact, Any], list[Any]]


def faithful(artifact: Artifact, inputs: Any) -> list[Any]:
    """What a vendor would plug in."""
    assert all(isinstance(v, torch.Tensor) for v in inputs)
    return list(TARGET.runtime.runner.run(artifact, inputs))


@pytest.mark.thorough
@pytest.mark.parametrize("export", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_network_is_bit_exact(name: str, export: bool) -> None:
    _, batch, done = calibrated(name, export=export)
    report = qfunc.verify(TARGET)(done, [batch])
    assert report.agreement.startswith("bit-exact")
    assert report.mismatches == 0
    assert report.elements > 0
    assert report.predicted > 0
    assert report.tensors > 0
    assert report.first is None
    assert report.to_dict()["verdict"] == report.verdict


def test_a_generator_of_batches() -> None:
    _, x, done = calibrated("residual")
    one = qfunc.verify(TARGET)(done, [x])
    many = qfunc.verify(TARGET)(done, (x + i for i in range(3)))
    assert many.agreement.startswith("bit-exact")
    assert many.elements == 3 * one.elements


def test_a_function_in_place_of_the_runtime() -> None:
    _, x, done = calibrated("residual")
    for run in (faithful, lambda a, i: [v.tolist() for v in faithful(a, i)]):
        report = qfunc.verify(TARGET, runtime=run)(done, [x])
        rest = "99.9 % of the multiply-accumulates"
        assert report.verdict == f"bit-exact: 0 of 10 elements differ; not compared: {rest}"
    assert qfunc.verify(TARGET, runtime=faithful)(done, [x]).runtime == "faithful"


def test_a_single_code_that_is_off_by_one_is_seen_and_placed() -> None:
    _, x, done = calibrated("dict_output")
    step = float(done.get_submodule("quantizers.head.output").scale)

    def off(artifact: Artifact, inputs: Any) -> list[Any]:
        features, logits = faithful(artifact, inputs)
        logits = logits.copy()
        logits[3, 1] += np.float32(step)
        return [features, logits]

    report = qfunc.verify(TARGET, runtime=off)(done, [x])
    assert report.verdict == "at most 1 LSB at rate 0.025: 1 of 40 elements differ, first at output 1"
    assert (report.mismatches, report.first.name) == (1, "output 1")
    first = report.first.first
    assert (first.batch, first.at) == (0, (3, 1))
    assert abs(first.runtime - first.emulated - step) < step / 1000  # both are float32
    assert f"\nfirst: output 1, batch 0, [3, 1]: {first.emulated:.9g} emulated, {first.runtime:.9g} by the runtime\n" in str(
        report
    )


@pytest.mark.parametrize("change", [lambda v: v * 2, lambda v: v * np.nan, lambda v: v * 0])
def test_a_wrong_runtime_is_a_mismatch(change: Callable[[Any], Any]) -> None:
    _, x, done = calibrated("residual")
    report = qfunc.verify(TARGET, runtime=lambda a, i: [change(v) for v in faithful(a, i)])(done, [x])
    assert report.verdict.startswith("mismatch: ")
    assert "first at output 0" in report.verdict


def test_an_error_in_one_batch_of_many_is_seen() -> None:
    _, x, done = calibrated("residual")
    count = 0

    def late(artifact: Artifact, inputs: Any) -> list[Any]:
        nonlocal count
        count += 1
        return [v + np.float32(count == 3) for v in faithful(artifact, inputs)]

    report = qfunc.verify(TARGET, runtime=late)(done, [x] * 3)
    assert report.mismatches == 10
    assert not report.agreement.startswith("bit-exact")


WRONG_SHAPES: dict[str, tuple[Run, str]] = {
    "transposed": (lambda a, i: [v.T for v in faithful(a, i)], "[[5, 2]]"),
    "missing": (lambda a, i: [], "[]"),
    "twice": (lambda a, i: faithful(a, i) * 2, "[[2, 5], [2, 5]]"),
}


@pytest.mark.parametrize("kind", WRONG_SHAPES)
def test_outputs_of_another_shape(kind: str) -> None:
    _, x, done = calibrated("residual")
    run, found = WRONG_SHAPES[kind]
    with pytest.raises(VerifyError) as caught:
        qfunc.verify(TARGET, runtime=run)(done, [x])
    text = f"verify, outputs of the runtime: found {found}, wanted [[2, 5]]. Return the outputs in the model's order."
    assert str(caught.value) == text


def test_a_target_without_public_arithmetic_is_compared_with_the_simulation() -> None:
    _, x, done = calibrated("residual", target=targets.tensorrt)
    report = qfunc.verify(targets.tensorrt, runtime=faithful)(done, [x])
    assert report.agreement.startswith("at most ")
    assert "against the simulation (no public arithmetic" in report.verdict
    assert not report.agreement.startswith("bit-exact")


def test_dict_batches() -> None:
    batch = {"a": torch.randn(2, 4), "b": torch.randn(2, 3)}
    done = qfunc.calibrate([batch])(qfunc.quantize(TARGET, (batch,))(DictInput().eval()))
    for given in (batch, (batch,), {"b": batch["b"], "a": batch["a"]}):
        assert qfunc.verify(TARGET)(done, [given]).agreement.startswith("bit-exact")
    found = "found keys 'a' for input 'batch', wanted a dict with keys 'a', 'b'"
    with pytest.raises(qfunc.errors.CalibrationError, match=found):
        qfunc.verify(TARGET)(done, [{"a": batch["a"]}])


RUNNERS = (
    (targets.runtimes.OnnxRuntimeRunner(), "model.onnx"),
    (targets.runtimes.OpenVinoRunner(), "model.onnx"),
    (targets.runtimes.LiteRtRunner(), "model.tflite"),
    (targets.runtimes.ExecuTorchRunner(), "model.pte"),
    (targets.runtimes.NcnnRunner(), "model.ncnn.param"),
    (targets.runtimes.TosaRunner(), "model.tosa"),
)
"""The runners with the first file that each reads."""
INSTALLED = [(r, file) for r, file in RUNNERS if isinstance(r, targets.runtimes.OnnxRuntimeRunner) or not r.missing()]


@pytest.mark.parametrize(("runner", "wanted"), INSTALLED, ids=lambda v: type(v).__name__ if attrs.has(type(v)) else "")
def test_a_runner_of_another_target_names_the_file_that_it_needs(runner: Any, wanted: str) -> None:
    x, net = torch.randn(2, 3, 8, 8), nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    others = (targets.onnxruntime, targets.litert, targets.ncnn, targets.tosa, targets.executorch_xnnpack)
    for target in others:
        ready = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(net))
        files = qfunc.deploy(target)(ready).files
        if wanted in files:
            continue
        with pytest.raises(FileError) as caught:
            qfunc.verify(target, runner)(ready, [x])
        assert str(caught.value) == (
            f"{wanted}: found no such file among {', '.join(sorted(files))}, wanted one. "
            "Deploy the model for the target of this runner."
        )


QUOTIENTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "softsign": ("truediv", lambda y: y / (y.abs() + 1)),
    "mean": ("truediv", lambda y: y / (y.abs().mean(1, keepdim=True) + 1)),
    "remainder": ("remainder", lambda y: torch.remainder(y, y.abs() + 1)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", QUOTIENTS)
@pytest.mark.parametrize("shown", [False, True], ids=["of the outputs", "of all tensors"])
def test_what_divides_0_by_0_as_codes_is_named(name: str, shown: bool) -> None:
    """Where |y| + 1 has values of 1000, the code of 1 is 0.  `deploy` blames no writer, and the runtime is not wrong."""
    op, function = QUOTIENTS[name]
    torch.manual_seed(1)
    parts = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 4, 1)
    net = Apply(lambda x, first, last: last(function(first(x))), *parts).eval()
    x = torch.randn(4, 3, 8, 8)
    target, bytes_ = edit.skip(Op("add"))(TARGET), TARGET.rules[0].input
    asked = edit.add(Op("add"), input=bytes_, output=bytes_)(TARGET)  # by default the sum is float, as what is beside it
    cured = qfunc.calibrate([1000 * x], progress=False)(qfunc.quantize(target)(net))
    assert qfunc.verify(target)(cured, [0 * x]).verdict.startswith("bit-exact")
    done = qfunc.calibrate([1000 * x], progress=False)(qfunc.quantize(asked)(net))
    assert "model.onnx" in qfunc.deploy(asked)(done).files
    with pytest.raises(VerifyError) as raised:
        qfunc.verify(asked, None if shown else faithful)(done, [0 * x])
    where, count = (f"tensor {op!r}", "2,048") if shown else ("output 0", "1,024")
    assert str(raised.value) == (
        f"verify, batch 1, {where}: found NaN before the quantizer in {count} of {count} elements, wanted numbers, which have "
        "codes. Keep the inputs of the op before it in float by edit.skip, if they are 0 as codes only, as in 0 / 0."
    )


@pytest.mark.parametrize(("factor", "verdict"), [(1 + 2**-22, "at most 0."), (1 + 2**-8, "mismatch")])
def test_outputs_that_differ_from_each_other_by_roundings_alone(factor: float, verdict: str) -> None:
    """Channels of equal weights, whose deviation is that of the biases everywhere: the range of the output is no scale."""
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), Apply(lambda y: y.std(1)))
    with torch.no_grad():
        net[0].weight.fill_(0.1)  # type: ignore[operator, union-attr]
    x = torch.randn(2, 1, 12, 8, generator=torch.Generator().manual_seed(0))
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.ncnn)(net))
    assert float(qfunc.emulate(targets.ncnn)(model)(x).std()) < 1e-6

    def run(artifact: Artifact, inputs: Any) -> list[Any]:
        return [factor * qfunc.emulate(targets.ncnn)(model)(x).numpy()]

    assert qfunc.verify(targets.ncnn, run)(model, [x]).agreement.startswith(verdict)


def test_inputs_with_a_gradient_are_compared_without_it() -> None:
    """As the rows of an embedding that a model is captured behind."""
    x = torch.randn(4, 8, requires_grad=True)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(nn.Linear(8, 3).eval()))
    assert qfunc.verify(targets.onnxruntime)(model, [x]).mismatches == 0
    assert x.grad is None
