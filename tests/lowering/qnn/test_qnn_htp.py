"""Qualcomm's HTP: what is refused and said without its emulator, and how far networks are from the simulation on it."""

from __future__ import annotations

import importlib.util
from typing import Any

import onnx
import pytest
import torch
from attrs import evolve
from onnx import numpy_helper
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import EmulationError, SpecError, VerifyError
from qfunc.graph.sites import quantizer_nodes
from qfunc.lowering import ExplicitQdqLowering
from qfunc.lowering.artifact import Artifact
from qfunc.specs import Int, Scheme
from qfunc.targets.runtimes import OnnxRuntimeRunner, QnnHtpRunner
from tests.lowering.tflite.test_litert import Residual

INSTALLED = importlib.util.find_spec("onnxruntime_qnn") is not None
needs_qnn = pytest.mark.skipif(not INSTALLED, reason="onnxruntime-qnn is not installed")
TARGET = targets.qnn_htp
NOT_PUBLIC = "no public arithmetic: the rounding of the HTP is not published"


def calibrated(model: nn.Module, x: Tensor, target: Any = TARGET) -> Any:
    """On a target."""
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model.eval()))


def test_it_is_not_emulated() -> None:
    done = calibrated(nn.Linear(3, 2), torch.randn(4, 3))
    with pytest.raises(EmulationError) as e:
        qfunc.emulate(TARGET)(done)
    assert str(e.value) == (
        f"emulate(qnn_htp): found {NOT_PUBLIC}, wanted a target whose kernels are known. "
        "The nearest target that can be emulated is targets.onnxruntime."
    )


def test_without_the_package_the_runner_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    done, find = calibrated(nn.Linear(3, 2), torch.randn(4, 3)), importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "onnxruntime_qnn" else find(name))
    with pytest.raises(VerifyError) as e:
        qfunc.verify(TARGET)(done, [torch.randn(4, 3)])
    assert str(e.value) == (
        "QnnHtpRunner: found the package onnxruntime-qnn is not installed, wanted onnxruntime-qnn 2.7 or later. "
        "Install qfunc-torch[qnn], or pass runtime=run, where run(artifact, inputs) -> outputs."
    )


WRONG_WINDOWS = {
    "avg_pool": (nn.AvgPool2d(2, padding=1), "Use a stride other than the kernel size"),
    "conv": (nn.Conv2d(4, 4, (3, 1), padding=1), "Use a padding smaller than the dilated kernel"),
    "conv_transpose": (nn.ConvTranspose2d(4, 2, 2, 2, output_padding=1), "Use an output_padding of at most the padding"),
}


@pytest.mark.parametrize("kind", WRONG_WINDOWS)
def test_windows_that_the_htp_gets_wrong_are_refused(kind: str) -> None:
    layer, cure = WRONG_WINDOWS[kind]
    with pytest.raises(SpecError) as e:
        qfunc.quantize(TARGET)(nn.Sequential(nn.Conv2d(3, 4, 1), layer))
    assert str(e.value).startswith(f"target 'qnn_htp', op '1': found the kind '{kind}'")
    assert "onnxruntime-qnn 2.7, measured: the HTP's results differ for these attributes" in str(e.value)
    assert cure in str(e.value)


RIGHT_WINDOWS = [
    nn.AvgPool2d(3, 2, padding=1), nn.AvgPool2d(2, padding=1, count_include_pad=False), nn.AvgPool2d(2),
    nn.Conv2d(4, 4, 2, padding=2, dilation=2), nn.Conv2d(4, 4, (3, 1), padding=(2, 0)),
    nn.ConvTranspose2d(4, 2, 4, 2, 1, output_padding=1),
]  # fmt: skip


@pytest.mark.parametrize("layer", RIGHT_WINDOWS, ids=str)
def test_windows_that_the_htp_gets_right(layer: nn.Module) -> None:
    qfunc.quantize(TARGET)(nn.Sequential(nn.Conv2d(3, 4, 1), layer))


DEPTHWISE = {  # stride, dilation, kernel, channels, outputs a channel: refused, and its nearest that is taken
    "strides over holes": [((2, 1), (1, 2), (3, 3), 6, 1), ((2, 1), (1, 1), (3, 3), 6, 1), ((1, 1), (1, 2), (3, 3), 6, 1)],
    "3x1": [((2, 2), (2, 2), (3, 1), 6, 1), ((2, 2), (2, 2), (3, 3), 6, 1), ((2, 2), (2, 2), (3, 1), 6, 2)],
    "3x3 by 3": [((3, 3), (2, 2), (3, 3), 6, 1), ((2, 2), (2, 2), (3, 3), 6, 1), ((3, 3), (2, 2), (3, 3), 1, 1)],
    "small windows": [((2, 2), (1, 1), (2, 2), 4, 1), ((2, 2), (1, 1), (2, 2), 5, 1), ((2, 2), (1, 1), (2, 1), 4, 1)],
    "points": [((2, 2), (1, 1), (1, 1), 2, 1), ((2, 2), (1, 1), (1, 1), 1, 1), ((2, 1), (1, 1), (1, 1), 2, 1)],
}  # fmt: skip
LEFT = "the provider assigns it to the CPU. Use a stride or a dilation, not both, or two outputs per channel."
OTHER = "the HTP's results differ for these attributes. Use at least five channels, or a 3x3 kernel."


def depthwise(stride: Any, dilation: Any, kernel: Any, channels: int, outputs: int) -> nn.Module:
    """One convolution."""
    layer = nn.Conv2d(channels, channels * outputs, kernel, stride, dilation=dilation, groups=channels)
    return nn.Sequential(layer, nn.ReLU())


@pytest.mark.parametrize("kind", DEPTHWISE)
def test_depthwise_convolutions_that_the_htp_has_not(kind: str) -> None:
    refused, *taken = DEPTHWISE[kind]
    with pytest.raises(SpecError) as e:
        qfunc.quantize(TARGET)(depthwise(*refused))
    assert str(e.value) == (
        "target 'qnn_htp', op '0': found the kind 'conv', wanted an op that QnnHtpLowering() writes: onnxruntime-qnn 2.7, "
        "measured: "
        f"{OTHER if refused[1] == (1, 1) else LEFT} To simulate it without a file, use attrs.evolve(target, lowering=None)."
    )
    for fine in taken:
        qfunc.quantize(TARGET)(depthwise(*fine))


def test_ops_that_are_not_taken_are_refused() -> None:
    for layer in (nn.SELU(), nn.GroupNorm(2, 4), nn.ConvTranspose2d(4, 2, 3, groups=2)):
        with pytest.raises(SpecError, match="the provider assigns it to the CPU, or the HTP does not compile it"):
            qfunc.quantize(TARGET)(nn.Sequential(nn.Conv2d(3, 4, 1), layer))


@needs_qnn
@pytest.mark.parametrize("arch", [68, 73])
def test_a_network_is_the_simulation_to_a_few_codes(arch: int) -> None:
    torch.manual_seed(3)
    x = torch.randn(3, 3, 15, 14)
    done = calibrated(Residual(), x)
    report = qfunc.verify(TARGET, QnnHtpRunner(arch))(done, [x, x[:1]])
    assert report.runtime == f"QnnHtpRunner(arch={arch})"
    assert report.unknown == NOT_PUBLIC
    assert report.verdict.endswith(f"against the simulation ({NOT_PUBLIC})")
    (row,) = report.of("output")
    assert row.elements == 16
    assert row.largest_lsb < 4.001  # measured: some codes; a wrong scale, bound or bias is off by tens


@needs_qnn
def test_the_batch_may_have_any_size_and_other_axes_too() -> None:
    done = calibrated(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(2, 3, 7, 6))
    session = QnnHtpRunner().session(qfunc.deploy(TARGET)(done).files)
    x = torch.randn(5, 3, 7, 6)
    (whole,), parts = session.run([x]), [session.run([x[i : i + 1]])[0] for i in range(5)]
    assert whole.shape == (5, 4, 5, 4)
    assert (whole == torch.cat([torch.from_numpy(p) for p in parts]).numpy()).all()
    assert list(session.sessions) == [((1, 3, 7, 6),)]


@needs_qnn
def test_what_falls_back_to_the_cpu_is_an_error() -> None:
    target = evolve(TARGET, legality=())
    done = calibrated(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Softsign()), torch.randn(2, 3, 5, 4), target)
    with pytest.raises(VerifyError) as e:
        qfunc.verify(target)(done, [torch.randn(2, 3, 5, 4)])
    assert str(e.value).startswith(
        "QnnHtpRunner: found Fail: [ONNXRuntimeError] : 1 : FAIL : This session contains graph nodes"
    )
    assert "wanted a model whose ops all run on the HTP. Skip the ops that the HTP does not run by edit.skip" in str(e.value)


def changed(artifact: Artifact, change: Any) -> Artifact:
    """With another model."""
    proto = onnx.load_from_string(artifact.files["model.onnx"])
    change(proto)
    return Artifact({**artifact.files, "model.onnx": proto.SerializeToString()})


@needs_qnn
def test_several_equal_scales_of_a_bias_are_taken_for_others() -> None:
    """Why `QnnHtpLowering` writes one; once this is repaired, it need not."""
    rule = evolve(TARGET.rules[0], weight=Scheme(Int(8, low=-127)))
    target, x = evolve(TARGET, rules=(rule, *TARGET.rules[1:])), torch.randn(2, 3, 7, 6)
    torch.manual_seed(1)
    done = calibrated(nn.Conv2d(3, 4, 3), x, target)
    artifact = qfunc.deploy(target)(done)

    def several(proto: Any) -> None:
        for constant in proto.graph.initializer:
            if constant.name in ("bias.scale", "bias.zero_point"):
                value = numpy_helper.to_array(constant)
                constant.CopyFrom(numpy_helper.from_array(value.repeat(4), constant.name))
        (node,) = (n for n in proto.graph.node if "bias.scale" in n.input)
        node.attribute.append(onnx.helper.make_attribute("axis", 0))

    wanted, step = done(x).detach().numpy(), artifact.report["tensors"][-1]["scale"][0]
    equal = changed(artifact, several)
    assert (OnnxRuntimeRunner(optimise=False).run(equal, [x])[0] == wanted).all()
    far = [abs(QnnHtpRunner().run(a, [x])[0] - wanted).max() / step for a in (artifact, equal)]
    assert far[0] < 1.001
    assert far[1] > 10


@needs_qnn
def test_a_clip_loses_its_upper_bound() -> None:
    """Why `QnnHtpLowering` writes bounds as codes: between quantizers, too, the HTP computes max(x, 0) for clip(x, 0, b)."""
    x, far = torch.randn(2, 3, 7, 6, generator=torch.Generator().manual_seed(4)), []
    for lowering in (TARGET.lowering, ExplicitQdqLowering()):
        target = evolve(TARGET, lowering=lowering, fusions=())
        torch.manual_seed(1)
        done = calibrated(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Hardtanh(0.0, 0.5)), x, target)
        *_, clip = (s.module for s in quantizer_nodes(done) if not s.module.site.constant)
        clip.scale.fill_(0.01)  # codes up to 2.55
        far.append(abs(QnnHtpRunner().run(qfunc.deploy(target)(done), [x])[0] - done(x).detach().numpy()).max())
    assert far[0] < 0.05  # a code of the convolution, and one of the clip
    assert far[1] > 0.4
