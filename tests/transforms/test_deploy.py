"""deploy: the same bytes, a full report, no trace in the working directory."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import fx

import qfunc
from qfunc import targets
from qfunc.graph.record import TensorInfo
from qfunc.graph.view import QuantizedModel
from qfunc.lowering.onnx.ops import WRITERS
from qfunc.lowering.onnx.writer import write_program
from qfunc.placement.partition import Partition
from qfunc.specs import from_json
from qfunc.transforms.onnx_check import first_difference
from tests.onnxruntime_target import ONNXRUNTIME
from tests.transforms.checks import arguments, calibrated, leaves
from tests.transforms.nets import NAMES, DictInput

TARGET = ONNXRUNTIME


@pytest.mark.parametrize("export", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_two_deploys_give_the_same_bytes_and_write_nothing(
    name: str, export: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, _, done = calibrated(name, export=export)
    first, second = (qfunc.deploy(TARGET)(done) for _ in range(2))
    assert first.files == second.files
    assert list(tmp_path.iterdir()) == []


def test_the_artifact_runs_with_any_batch() -> None:
    _, _, done = calibrated("residual")
    artifact = qfunc.deploy(TARGET)(done)
    for n in (1, 2, 7):
        batch = torch.randn(n, 3, 8, 8)
        (got,) = TARGET.runtime.runner.run(artifact, [batch])
        assert got.shape == (n, 5)
        assert (torch.from_numpy(got) - done(batch)).abs().max() < 0.1


def test_the_report_says_how_it_was_made() -> None:
    _, _, done = calibrated("residual")
    artifact = qfunc.deploy(TARGET)(done)
    report = json.loads(artifact.files["qfunc.json"])
    assert report == artifact.report
    assert set(report) == {"versions", "target", "inputs", "tensors", "units", "files"}
    assert report["files"] == {"model.onnx": hashlib.sha256(artifact.files["model.onnx"]).hexdigest()}
    assert set(report["versions"]) == {"qfunc-torch", "torch", "onnx", "onnxruntime"}
    assert report["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert from_json(json.dumps(report["target"])) == TARGET
    assert report["inputs"] == [{"shape": [2, 3, 8, 8], "dtype": "torch.float32"}]
    tensors = {t["name"]: t for t in report["tensors"]}
    assert tensors["x"]["scale"] == [float(done.get_submodule("quantizers.x.output").scale)]
    assert len(tensors["conv1.weight"]["scale"]) == 8
    assert {u["path"]: u["integer"] for u in report["units"]}["conv1"] is True


def test_weights_are_stored_as_the_integers_of_the_simulation() -> None:
    _, _, done = calibrated("residual")
    model = onnx.load_from_string(qfunc.deploy(TARGET)(done).files["model.onnx"])
    held = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    codes = next(v for n, v in held.items() if n.startswith("conv2.weight") and v.ndim == 4)
    site = done.get_submodule("quantizers.conv2.weight")
    assert codes.dtype == "int8"
    simulated = site(done.get_parameter("conv2.weight")).detach()
    assert torch.equal(torch.tensor(codes).float() * site.scale, simulated)


def test_example_inputs_replace_the_shapes_of_calibration() -> None:
    _, (a, b), done = calibrated("two_inputs")
    for given in ((a[:3], b[:3]), {"b": b[:3], "a": a[:3]}):
        report = qfunc.deploy(TARGET, example_inputs=given)(done).report
        assert [i["shape"] for i in report["inputs"]] == [[3, 4], [3, 3]]


@pytest.mark.parametrize("name", NAMES)
def test_the_runtime_gives_the_outputs_in_order(name: str) -> None:
    _, batch, done = calibrated(name)
    artifact = qfunc.deploy(TARGET)(done)
    got = TARGET.runtime.runner.run(artifact, list(arguments(batch)))
    for a, b in zip(got, leaves(done(*arguments(batch))), strict=True):
        assert (torch.from_numpy(a) - b).abs().max() < 0.1


def test_tensorrt_deploys_without_emulation() -> None:
    _, _, done = calibrated("branches", target=targets.tensorrt)
    artifact = qfunc.deploy(targets.tensorrt)(done)
    onnx.checker.check_model(onnx.load_from_string(artifact.files["model.onnx"]))


def test_a_dict_input_that_was_traced_is_refused_by_name() -> None:
    batch = {"a": torch.randn(2, 4), "b": torch.randn(2, 3)}
    done = qfunc.calibrate([batch])(qfunc.quantize(TARGET)(DictInput().eval()))
    with pytest.raises(qfunc.errors.DeployError) as caught:
        qfunc.deploy(TARGET)(done)
    assert str(caught.value) == (
        "deploy, inputs: found a dict, 'batch', wanted one tensor for each input. "
        "Give quantize the example_inputs, so that the model is captured with one input for each tensor."
    )


def test_an_artifact_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first tensor that differs: what is wrong in the middle is not blamed on the end."""
    monkeypatch.setitem(WRITERS, "add", lambda c: c.write("Sub", c.input(), c.input("other")))
    _, _, done = calibrated("residual")
    with pytest.raises(qfunc.errors.DeployError) as caught:
        qfunc.deploy(TARGET)(done)
    assert str(caught.value) == (
        "deploy, tensor 'relu_1': found an ONNX model that computes something else than the simulation, wanted the same "
        "function. Report this model: its ops are captured or written wrongly."
    )


def test_a_float_output_that_is_computed_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WRITERS, "gelu", lambda c: c.write("Relu", c.input()))
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.GELU())
    done = qfunc.calibrate([torch.randn(4, 3)], progress=False)(qfunc.quantize(TARGET)(model))
    with pytest.raises(qfunc.errors.DeployError, match="deploy, output '1': found an ONNX model that computes something else"):
        qfunc.deploy(TARGET)(done)


def test_codes_that_round_otherwise_and_spread_are_no_other_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deep network may end anywhere after one code differs: each tensor is compared given those before it."""
    file: Any = sys.modules["qfunc.transforms.onnx_check"]
    plain = file.run_in_evaluation_mode
    monkeypatch.setattr(file, "run_in_evaluation_mode", lambda m, leaves, **how: [v + 1 for v in plain(m, leaves, **how)])
    _, _, done = calibrated("residual")
    assert "model.onnx" in qfunc.deploy(TARGET)(done).files


def test_one_wrong_code_is_not_carried_on() -> None:
    """2^12 times what one code of the first tensor is: a simulation that took its own would end elsewhere."""
    first, last = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1)
    with torch.no_grad():
        first.weight.fill_(1.0)
        last.weight.fill_(4096.0)
        last.bias.fill_(-4096.0 * 127 / 255)
    net = torch.nn.Sequential(first, last)
    done = qfunc.calibrate([torch.tensor([[0.0], [1.0]])], progress=False)(qfunc.quantize(TARGET)(net))
    batch = (TensorInfo((2, 1), "torch.float32"),)
    program = write_program(Partition(QuantizedModel(done), TARGET), batch)
    x = torch.tensor([[127 / 255], [128 / 255]])
    assert first_difference(program.model, program.tensors, _OneCodeHigher(done), [x]) == ""


def test_one_wrong_code_found_at_run_time_is_not_carried_on() -> None:
    """Two codes of 127 and 126 nearly cancel: a simulation that took its own first code, 125, would end elsewhere."""
    layer, target = torch.nn.Linear(32, 1, bias=False), targets.onnxruntime_nbits(8, 32)
    with torch.no_grad():
        layer.weight.copy_(F.pad(torch.tensor([[1.0, -1.0]]), (0, 30)))
    x = F.pad(torch.tensor([[127.0, 126.0]]), (0, 30))
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(torch.nn.Sequential(layer)))
    program = write_program(Partition(QuantizedModel(done), target), (TensorInfo((1, 32), "torch.float32"),))
    assert first_difference(program.model, program.tensors, _TwoCodesLower(done), [x]) == ""


class _TwoCodesLower(fx.Interpreter):
    # The simulation, with another code for the first element of the input.
    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = super().call_module(target, args, kwargs)
        return value - F.pad(torch.tensor([[2.0]]), (0, 31)) if str(target) == "quantizers.input.output" else value


class _OneCodeHigher(fx.Interpreter):
    # The simulation, with another code for the first element of the input.
    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = super().call_module(target, args, kwargs)
        return value + torch.tensor([[1 / 255], [0.0]]) if str(target) == "quantizers.input.output" else value


def test_ties_that_other_hardware_rounds_otherwise_are_no_other_function() -> None:
    """Every second code of the second channel is a tie, which the DPU rounds up and QuantizeLinear to even."""
    layer = torch.nn.Conv2d(2, 2, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.tensor([1.0, 0.5])).reshape(2, 2, 1, 1))
    x = torch.full((2, 2, 8, 8), 120.0)
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.vitis)(torch.nn.Sequential(layer)))
    files = qfunc.deploy(targets.vitis)(done).files
    probe = torch.arange(128.0).reshape(1, 2, 8, 8) / 16
    got = targets.onnxruntime.runtime.runner.session(files["model.onnx"]).run([probe])[0]
    wanted = done(probe).detach()
    assert float((torch.from_numpy(got) - wanted).square().sum()) > 0.01 * float(wanted.square().sum())
