"""The units that runtimes execute: what OpenVINO and LiteRT show of them, and predictions that are wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import evolve
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.specs import FloatKernel, Kernel, Op, Target, edit
from qfunc.targets.litert import runner as tflite_runner
from qfunc.targets.litert.units import changed_kernels
from qfunc.targets.openvino import units

X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Two convolutions, a curve between them, and the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.mish(torch.relu(self.first(x)))
        return self.second(y).mean((2, 3))


def calibrated(target: Target) -> Any:
    torch.manual_seed(0)
    return qfunc.calibrate([X], progress=False)(qfunc.quantize(target)(Net().eval()))


def shown(name: str) -> Any:
    """How the runtime of a target computes the tensors of codes."""
    target: Any = getattr(targets, name)
    return target.runtime.runner.inside(qfunc.deploy(target)(calibrated(target))).executed


def agreement(target: Target) -> str:
    return qfunc.verify(target)(calibrated(target), [X]).agreement


@pytest.mark.parametrize("name", ["litert", "litert_reference", "executorch_xnnpack"])
def test_runtimes_show_the_operators_that_read_codes(name: str) -> None:
    found = shown(name)
    assert {n: found[n] for n in ("relu.codes", "mish.codes", "second.codes", "mean.codes")} == {
        "relu.codes": "integer", "mish.codes": "float", "second.codes": "integer", "mean.codes": "integer",
    }  # fmt: skip


def test_a_product_that_openvino_computes_in_float(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown("openvino") == {}
    assert agreement(targets.openvino).startswith("bit-exact outside 2 float units")
    monkeypatch.setattr(units, "_kernels", lambda compiled: [("second", "jit_avx512_f32")])
    assert agreement(targets.openvino) == (
        "mismatch: the runtime's units are not the predicted ones (second: predicted integer, but the runtime runs it as float)"
    )


def test_openvino_computes_affine_weights_in_float() -> None:
    target = edit.weights(symmetric=False)(targets.openvino)
    report = qfunc.verify(target)(calibrated(target), [X])
    assert report.agreement.startswith("bit-exact outside")
    assert dict(report.float_units)["second"] == "NoZeroPoint does not hold"


@pytest.mark.parametrize("name", ["litert", "litert_reference"])
def test_operators_that_litert_computes_in_float(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target: Any = getattr(targets, name)
    assert agreement(target).startswith("bit-exact: 0 of")
    monkeypatch.setattr(tflite_runner, "written_units", lambda model, wanted: {"mean.codes": "float", "mish.codes": "integer"})
    assert qfunc.verify(target)(calibrated(target), [X]).disagreements == (
        "mish: predicted float, but the runtime runs it as integer",
        "mean: predicted integer, but the runtime runs it as float",
    )


def test_a_kernel_in_float_is_right_either_way() -> None:
    curve = evolve(targets.litert, kernels=(Kernel(Op("mish"), FloatKernel()), *targets.litert.kernels))
    assert agreement(curve).startswith("bit-exact: 0 of")


@pytest.mark.parametrize("name", ["litert", "executorch_xnnpack"])
def test_a_move_is_right_before_and_after_its_quantizer(name: str) -> None:
    target: Any = getattr(targets, name)
    net, x = nn.Sequential(nn.ChannelShuffle(2), nn.AdaptiveAvgPool2d(1)), torch.randn(2, 4, 5, 5)
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(net))
    assert qfunc.verify(target)(done, [x]).agreement.startswith("bit-exact: 0 of")


class ClampedMoves(nn.Module):
    """Real values that are moved and then clamped to more than the range of their codes."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.RNN(4, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0].clamp(-1, 1))


def test_a_clamp_of_moved_values_is_right_before_and_after_their_quantizer() -> None:
    torch.manual_seed(0)
    target, net, x = targets.onnxruntime, ClampedMoves().eval(), torch.randn(2, 7, 4)
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(net))
    assert "bit-exact: 0 of" in qfunc.verify(target)(done, [x]).verdict


@pytest.mark.parametrize(
    "move",
    [
        nn.Upsample(scale_factor=2),
        nn.ChannelShuffle(2),
        nn.PixelShuffle(2),
        nn.PixelUnshuffle(2),
        nn.GELU(),
        nn.SiLU(),
        nn.Flatten(),
    ],
    ids=lambda move: type(move).__name__,
)
def test_what_tvm_s_file_moves_on_codes(move: nn.Module) -> None:
    torch.manual_seed(0)
    target, net, x = targets.onnx_qnn, nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), move), torch.randn(2, 4, 6, 6)
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(net))
    assert "mismatch" not in (verdict := qfunc.verify(target)(done, [x]).verdict), verdict
    assert "bit-exact" in verdict


def test_outputs_that_change_what_a_delegate_computes() -> None:
    plain, exposed = frozenset({"a.codes", "b.codes"}), frozenset({"b.codes", "c.codes"})
    assert changed_kernels(plain, plain, plain) == ""
    assert changed_kernels(plain, exposed, {"a.codes", "b.codes", "c.codes"}) == (
        "reading the inner tensors changes the kernels of a.codes, c.codes"
    )
