"""On which CPUs the runners say that they compute as the targets say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.lowering import ExecuTorchRunner, LiteRtRunner, NcnnRunner, OnnxRuntimeRunner, OpenVinoRunner, TosaRunner
from qfunc.lowering import runner_support as runtimes
from qfunc.lowering.ncnn.runner import APART
from qfunc.specs import edit
from tests.onnxruntime_target import ONNXRUNTIME

SATURATE = "without VNNI the kernels saturate sums of two products to 16 bits"
ROUND_TWICE = "without FMA its convolutions round twice"


def said(monkeypatch: pytest.MonkeyPatch, machine: str, flags: str | None, artifact: Any = None) -> dict[str, str]:
    """What each runner says on such a CPU; None: the system does not tell what it has."""

    class File:
        def exists(self) -> bool:
            return flags is not None

        def read_text(self) -> str:
            assert flags is not None
            return flags

    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(runtimes, "Path", {"/proc/cpuinfo": File()}.__getitem__)
    runners = (
        OnnxRuntimeRunner(),
        OnnxRuntimeRunner(optimise=False),
        OpenVinoRunner(),
        LiteRtRunner(),
        ExecuTorchRunner(),
        NcnnRunner(),
        TosaRunner(),
    )
    return {repr(runner): text for runner in runners if (text := runner.comparable(artifact))}


def test_other_machines_have_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    runners = map(repr, (OnnxRuntimeRunner(), OpenVinoRunner(), LiteRtRunner(), ExecuTorchRunner(), NcnnRunner()))
    wanted = dict.fromkeys(runners, "aarch64 has other kernels than x86-64")
    assert said(monkeypatch, "aarch64", "asimddp") == wanted


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ("avx2 fma bmi", {OnnxRuntimeRunner(): SATURATE, OpenVinoRunner(): SATURATE}),
        ("avx2 fma4 avx_vnni bmi", {NcnnRunner(): ROUND_TWICE}),
        ("avx2 fma avx512_vnni bmi", {}),
        (None, {}),
    ],
)
def test_features_decide(monkeypatch: pytest.MonkeyPatch, flags: str | None, wanted: dict[Any, str]) -> None:
    assert said(monkeypatch, "x86_64", flags) == {repr(runner): text for runner, text in wanted.items()}


@pytest.mark.parametrize(
    ("layer", "fuses"),
    [
        (nn.Conv2d(6, 6, 3, 2, groups=6), True),
        (nn.Conv2d(6, 12, 3, groups=6), True),
        (nn.Sequential(nn.Conv2d(6, 6, 3, groups=6), nn.ReLU6()), False),
        (nn.Conv2d(6, 6, 3, 3, groups=6), False),
        (nn.Conv2d(6, 6, 3, dilation=2, groups=6), False),
        (nn.Conv2d(6, 6, (3, 5), groups=6), False),
        (nn.Conv2d(6, 6, 3, groups=2), False),
    ],
)
def test_some_depthwise_convolutions_fuse_with_avx512(monkeypatch: pytest.MonkeyPatch, layer: nn.Module, fuses: bool) -> None:
    batches = [torch.ones(1, 6, 9, 8)]
    artifact = qfunc.deploy(targets.ncnn)(qfunc.calibrate(batches)(qfunc.quantize(targets.ncnn)(layer)))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    for flags, wanted in (("avx2 fma bmi", APART if fuses else ""), ("avx2 fma avx512f bmi", "")):
        monkeypatch.setattr(runtimes, "has", lambda feature, flags=flags: feature in flags)
        monkeypatch.setattr("qfunc.lowering.ncnn.runner.has", runtimes.has)
        assert NcnnRunner().comparable(artifact) == wanted


@pytest.mark.parametrize(("target", "runner"), [(ONNXRUNTIME, OnnxRuntimeRunner()), (targets.openvino, OpenVinoRunner())])
@pytest.mark.parametrize(("bits", "wanted"), [(7, ""), (8, SATURATE)])
def test_weights_of_seven_bits_do_not_saturate(
    monkeypatch: pytest.MonkeyPatch, target: Any, runner: Any, bits: int, wanted: str
) -> None:
    x = torch.randn(2, 3, 5, 4)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(edit.weights(bits=bits)(target))(nn.Conv2d(3, 2, 1)))
    artifact = qfunc.deploy(edit.weights(bits=bits)(target))(model)
    assert said(monkeypatch, "AMD64", "avx2 fma bmi", artifact).get(repr(runner), "") == wanted
