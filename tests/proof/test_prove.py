"""prove: the package holds what the emulation computes, and what the runtime computes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError, EmulationError, VerifyError
from qfunc.specs import edit
from qfunc.targets.runtimes import OnnxRuntimeRunner
from tests.onnxruntime_target import ONNXRUNTIME
from tests.proof.packages import Residual, X, calibrated, package

ARM = edit.cpu("arm64-dotprod")(targets.onnxruntime)


def test_the_tensors_are_those_of_the_runtime_and_of_the_emulation() -> None:
    model = calibrated(ONNXRUNTIME)
    files = qfunc.prove(ONNXRUNTIME)(model, X).files
    proof, tensors = json.loads(files["proof.json"]), load(files["proof.safetensors"])
    outputs, codes = OnnxRuntimeRunner().inside(qfunc.deploy(ONNXRUNTIME)(model)).run([X])
    assert [e["name"] for e in proof["tensors"]] == ["x", "relu", "other", "relu_1", "mean", "head", "output 0"]
    shown = {e["shown"] for e in proof["tensors"]} - {None}
    assert shown == {name for name in codes if ".inner." not in name}  # inside the mean, which the emulation computes at once
    for name in shown:
        assert np.array_equal(tensors[name], codes[name]), name
    assert np.array_equal(tensors["output.0"], outputs[0])
    assert np.array_equal(tensors["output.0"], qfunc.emulate(ONNXRUNTIME)(model)(X).numpy())
    assert np.array_equal(tensors["input.0"], X.numpy())
    assert all(e["exact"] for e in proof["tensors"])


def test_two_packages_have_the_same_bytes_and_their_digests() -> None:
    first, second = package(ARM), package(ARM)
    assert first.files == second.files
    assert sorted(first.files) == ["check.py", "index.html", "model.onnx", "proof.json", "proof.safetensors", "qfunc.json"]
    found = {n: hashlib.sha256(c).hexdigest() for n, c in first.files.items() if n != "qfunc.json"}
    assert first.report["files"] == found
    assert json.loads(first.files["proof.json"])["cpu"] == "arm64-dotprod"
    assert len(first.files["check.py"].splitlines()) < 200


def test_the_artifact_stays_as_it_was_and_keeps_its_names() -> None:
    model = calibrated(ARM)
    artifact = qfunc.deploy(ARM, name="net", input_names=("image",), output_names=("scores",))(model)
    before = dict(artifact.files)
    proven = qfunc.prove(ARM, artifact=artifact)(model, X)
    assert dict(artifact.files) == before
    assert proven.files["net.onnx"] == before["net.onnx"]
    assert json.loads(proven.files["proof.json"])["files"] == ["net.onnx"]


class Upsampled(nn.Module):
    """A convolution before and after an op that stays float."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(nn.functional.interpolate(self.first(x), scale_factor=2, mode="bicubic"))


def exact(proven: Any) -> dict[str, bool]:
    return {e["name"]: e["exact"] for e in json.loads(proven.files["proof.json"])["tensors"]}


def test_tensors_after_an_op_without_a_kernel_need_not_be_equal() -> None:
    found = exact(package(ONNXRUNTIME, Upsampled()))
    assert found == {"x": True, "first": True, "interpolate": False, "last": False, "output 0": False}


class Padded(nn.Module):
    """The bypass of a residual network without weights: every second pixel, and channels of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.other = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 8, 3, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return self.other(y) + nn.functional.pad(y[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))


@pytest.mark.parametrize("target", [ONNXRUNTIME, ARM], ids=["here", "arm64"])
def test_moves_in_float_between_equal_qparams_are_exact(target: Any) -> None:
    found = exact(package(target, Padded()))
    assert found["pad"]
    assert all(found.values()), found


def test_curves_in_float_are_exact_on_the_processor_that_they_were_compared_on() -> None:
    found = {}
    for cpu in ("x86-64-vnni", "arm64"):
        target = edit.cpu(cpu)(targets.onnxruntime)
        found[cpu] = exact(package(target, nn.Sequential(nn.Conv2d(3, 4, 1), nn.GELU(), nn.Conv2d(4, 2, 1))))
    assert all(found["x86-64-vnni"].values()), found
    assert list(found["arm64"].values()) == [True, True, False, False, False]


def test_a_link_to_onnxruntime_web_cannot_leave_the_script() -> None:
    link = 'https://example.org/"</script><script>alert(1)//'
    page = package(ARM, onnxruntime_web=link).files["index.html"].decode()
    assert page.count("<script") == 1
    assert json.dumps(link).replace("<", "\\u003c") in page
    assert '"./"' not in page


def test_mistakes_are_one_line() -> None:
    model, other = calibrated(ARM), calibrated(targets.onnxruntime)
    with pytest.raises(VerifyError) as e:
        qfunc.prove(targets.tosa)
    assert str(e.value) == (
        "prove(tosa): found the runtime tosa, wanted ONNX Runtime, LiteRT, ncnn or OpenVINO. "
        "Compare it by qfunc.verify(target, runtime=run)."
    )
    with pytest.raises(VerifyError) as e:
        qfunc.prove(edit.cpu("wasm-simd")(targets.litert))
    assert str(e.value) == (
        "prove(litert): found litert on wasm-simd, wanted ONNX Runtime, which the page runs. Compare it by "
        "qfunc.verify(target, LiteRtRunner(machine=Browser()))."
    )
    with pytest.raises(VerifyError) as e:
        qfunc.prove(ARM, onnxruntime_web="web")
    assert str(e.value) == (
        "prove, onnxruntime_web: found 'web', wanted a folder that ends with '/'. Write './' for the folder of the page, or "
        "a URL."
    )
    with pytest.raises(VerifyError) as e:
        qfunc.prove(ARM, artifact=3)  # type: ignore[arg-type]
    assert str(e.value) == (
        "prove, artifact: found 3, wanted an Artifact. Pass the result of deploy(target)(calibrated), or leave it out."
    )
    with pytest.raises(DeployError) as d:
        qfunc.prove(ARM, artifact=qfunc.deploy(targets.onnxruntime)(other))(model, X)
    assert str(d.value) == (
        "prove, artifact: found another target in its report, wanted onnxruntime. Deploy the model for the target of prove."
    )
    torch.manual_seed(1)
    foreign = qfunc.calibrate([X * 2], progress=False)(qfunc.quantize(ARM)(Residual().eval()))
    with pytest.raises(DeployError) as d:
        qfunc.prove(ARM, artifact=qfunc.deploy(ARM)(foreign))(model, X)
    assert str(d.value) == (
        "prove, artifact: found other qparams in its report, wanted the model's qparams. Pass the artifact of the calibrated "
        "model, or leave it out."
    )
    with pytest.raises(EmulationError):
        qfunc.prove(ARM)(other, X)


def test_it_prints_as_the_call_that_makes_it() -> None:
    assert repr(qfunc.prove(ARM, onnxruntime_web="../web/")).endswith("onnxruntime_web='../web/')")
