"""Axes with several sizes in calibration vary in the artifact, or the error says what to give; the runtimes are the oracle."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import CalibrationError, CaptureError, DeployError
from qfunc.lowering import QdqLowering
from qfunc.lowering.combination import Combined
from qfunc.specs import Target, edit
from qfunc.targets.runtimes import TensorRtRanges

CALIBRATED, OTHERS = ((2, 32, 32), (1, 48, 64), (2, 32, 32)), ((3, 80, 48), (1, 16, 112))
FIXED = ("litert", "executorch_xnnpack", "ncnn")


class Pyramid(nn.Module):
    """Two levels; the coarse one is resized to the fine one, whatever its size."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep = nn.Conv2d(3, 4, 3, 4, 1), nn.Conv2d(4, 4, 3, 2, 1)
        self.side, self.head = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        fine = self.stem(x).relu()
        deep = self.deep(fine).relu()
        return {"fine": self.head(self.side(fine) + F.interpolate(deep, size=fine.shape[-2:])), "deep": self.side(deep)}


class Multiples(nn.Module):
    """Doubles a level and joins it to another: it takes multiples of 4 only. The cells of the result are one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 2, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        first = self.first(x).relu()
        up = F.interpolate(self.second(first).relu(), scale_factor=2.0)
        height, width = first.shape[-2:]
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        grid = torch.stack((x, y), -1).reshape(1, height * width, 2).to(up.dtype)
        return {"cells": self.third(torch.cat([up, first], 1)).flatten(2).transpose(1, 2).sigmoid() + grid}


def batch(count: int, height: int, width: int) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(100 * height + width))


def calibrated(model: nn.Module, target: Target, sizes: tuple[tuple[int, int, int], ...] = CALIBRATED) -> torch.fx.GraphModule:
    return qfunc.calibrate([batch(*s) for s in sizes], progress=False)(qfunc.quantize(target)(model))


def made(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().eval()


def narrow(name: str) -> Target:
    """Return a target with weights of at most 7 bits, so that any x86-64 computes the same."""
    target: Target = getattr(targets, name)
    if name != "onnxruntime" and (missing := target.runtime.runner.missing()):
        pytest.skip(missing)
    return edit.weights(bits=7)(target) if name != "ncnn" else target


@pytest.mark.parametrize("kind", [Pyramid, Multiples])
def test_one_onnx_file_takes_other_sizes_and_batches(kind: type[nn.Module]) -> None:
    target = narrow("onnxruntime")
    model = calibrated(made(kind), target)
    artifact = qfunc.deploy(target)(model)
    for size in OTHERS:
        x = batch(*size)
        with torch.no_grad():
            expected = qfunc.emulate(target)(model)(x)
        for value, found in zip(expected.values(), target.runtime.runner.run(artifact, [x]), strict=True):
            assert np.array_equal(value.numpy(), found)
    report = qfunc.verify(target)(model, [batch(*size) for size in OTHERS])
    assert report.verdict.startswith("bit-exact: 0 of "), report.verdict


def test_sizes_of_no_common_divisor() -> None:
    """The levels of 33 x 47 are 9 x 12 and 5 x 6: the factors of the resize are no whole numbers."""
    target = narrow("onnxruntime")
    report = qfunc.verify(target)(calibrated(made(Pyramid), target), [batch(2, 33, 47), batch(1, 50, 21)])
    assert report.verdict.startswith("bit-exact: 0 of "), report.verdict


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exported", [False, True])
def test_openvino_computes_the_same_as_from_a_file_of_that_size(exported: bool) -> None:
    """OpenVINO's sums have their own order, so that the file of one size, not the emulation, is the oracle."""
    target, model = narrow("openvino"), made(Pyramid)
    auto = torch.export.Dim.AUTO
    if exported:
        model = torch.export.export(model, (batch(*CALIBRATED[0]),), dynamic_shapes=({0: auto, 2: auto, 3: auto},))
    done = calibrated(model, target)
    run, artifact = target.runtime.runner.run, qfunc.deploy(target)(done)
    for size in OTHERS:
        x = batch(*size)
        own = qfunc.deploy(target, example_inputs=(x,))(done)
        assert all(np.array_equal(a, b) for a, b in zip(run(artifact, [x]), run(own, [x]), strict=True))


def test_the_axes_of_the_file_vary_that_varied_in_calibration() -> None:
    target = targets.onnxruntime
    for sizes, wanted in (
        (CALIBRATED, ["batch", 3, "x_2", "x_3"]),
        (((2, 32, 32), (2, 32, 64)), ["batch", 3, 32, "x_3"]),
        (((2, 32, 32), (1, 32, 32)), ["batch", 3, 32, 32]),
    ):
        done = calibrated(made(Pyramid), target, sizes)
        for deploy, dims in ((qfunc.deploy(target), wanted), (qfunc.deploy(target, (batch(1, 64, 48),)), ["batch", 3, 64, 48])):
            (given,) = onnx.load_from_string(deploy(done).files["model.onnx"]).graph.input
            assert [d.dim_param or d.dim_value for d in given.type.tensor_type.shape.dim] == dims


def test_saved_models_keep_the_sizes(tmp_path: Path) -> None:
    model = made(Pyramid)
    done = calibrated(model, targets.onnxruntime)
    qfunc.save(tmp_path)(done)
    deploy = qfunc.deploy(targets.onnxruntime)
    assert deploy(qfunc.load(tmp_path)(model)).files["model.onnx"] == deploy(done).files["model.onnx"]


@pytest.mark.parametrize("name", FIXED)
def test_a_format_of_one_size_says_what_to_give(name: str) -> None:
    target = getattr(targets, name)
    done = calibrated(made(Pyramid), target)
    file = {"litert": "a .tflite", "executorch_xnnpack": "a .pte", "ncnn": "a .param of ncnn"}[name]
    text = (
        f"deploy({name}), input 'x': found sizes that vary: [n, 3, 32, 32] and [n, 3, 48, 64], wanted one size for {file}; "
        "only the batch may vary. Give the size: deploy(target, example_inputs=(torch.zeros(1, 3, 32, 32),)), a file for each "
        "size."
    )
    with pytest.raises(DeployError, match=f"^{re.escape(text)}$"):
        qfunc.deploy(target)(done)


@pytest.mark.parametrize("name", FIXED)
def test_a_file_of_the_given_size_is_exact(name: str) -> None:
    target = narrow(name)
    done, x = calibrated(made(Pyramid), target), batch(*OTHERS[0])
    artifact = qfunc.deploy(target, example_inputs=(x,))(done)
    with torch.no_grad():
        expected = qfunc.emulate(target)(done)(x)
    for value, found in zip(expected.values(), target.runtime.runner.run(artifact, [x]), strict=True):
        assert np.array_equal(value.numpy(), found)
    report = qfunc.verify(target)(done, [x])  # for the size of its first batch
    assert report.mismatches == 0
    assert report.elements > 0


@pytest.mark.filterwarnings("ignore")
def test_the_axes_that_an_export_left_dynamic_are_fixed_by_example_inputs() -> None:
    auto = torch.export.Dim.AUTO
    program = torch.export.export(made(Pyramid), (batch(2, 32, 32),), dynamic_shapes=({0: auto, 2: auto, 3: auto},))
    target = targets.ncnn
    done = calibrated(program, target, CALIBRATED[:1])
    with pytest.raises(DeployError, match=r"found sizes that vary: \[n, 3, 32, 32\], wanted one size for a \.param of ncnn"):
        qfunc.deploy(target)(done)
    assert "model.ncnn.param" in qfunc.deploy(target, (batch(1, 48, 32),))(done).files


def test_several_files_of_which_one_has_one_size() -> None:
    target = edit.deploy(Combined((QdqLowering(), TensorRtRanges())))(targets.tensorrt)
    assert Combined((QdqLowering(), TensorRtRanges())).format.one_size == ""
    assert Combined((QdqLowering(), targets.ncnn.lowering)).format.one_size == "a .param of ncnn"
    assert "model.onnx" in qfunc.deploy(target)(calibrated(made(Pyramid), target)).files


def test_sizes_that_the_capture_fixed_are_named_with_the_cure() -> None:
    """`example_inputs` exports the model with the batch dynamic alone."""
    quantized = qfunc.quantize(targets.onnxruntime, example_inputs=(batch(2, 32, 32),))(made(Multiples))
    text = (
        "calibrate, batch 2, op 'add': found RuntimeError: The size of tensor a (768) must match the size of tensor b (256) at "
        "non-singleton dimension 1, wanted inputs on which the model runs. Pass batches with the arguments of the model's "
        "forward, of the sizes of example_inputs; for other sizes, quantize torch.export.export(model, args, "
        "dynamic_shapes=...) with these axes dynamic."
    )
    with pytest.raises(CalibrationError, match=f"^{re.escape(text)}$"):
        qfunc.calibrate([batch(*s) for s in CALIBRATED], progress=False)(quantized)


def test_a_resize_to_sizes_that_the_capture_fixed_is_refused() -> None:
    """It would run, and return an image of the captured size; a program whose axes vary follows the input."""

    class Restored(nn.Module):
        """A resize to the size of the input."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return F.interpolate(self.conv(x).relu(), size=x.shape[-2:])

    target, auto, model, first = narrow("onnxruntime"), torch.export.Dim.AUTO, made(Restored), batch(2, 32, 32)
    text = (
        "call of an exported program, input 'x': found a tensor of shape [1, 3, 48, 64], wanted [any, 3, 32, 32], to which "
        "torch.export fixed it. Export it with dynamic_shapes, such as {'x': {0: torch.export.Dim.AUTO}}, and an example of "
        "two; or quantize the nn.Module itself."
    )
    with pytest.raises(CaptureError, match=f"^{re.escape(text)}$"):
        calibrated(qfunc.capture(example_inputs=(first,))(model), target)
    program = torch.export.export(model, (first,), dynamic_shapes=({0: auto, 2: auto, 3: auto},))
    x = batch(*OTHERS[0])
    for name in ("onnxruntime", "openvino"):
        if name == "openvino" and importlib.util.find_spec("openvino") is None:
            continue
        for follows in (model, program):
            report = qfunc.verify(narrow(name))(done := calibrated(follows, narrow(name)), [x])
            assert report.verdict.startswith("bit-exact: 0 of ")
            assert done(x).shape == model(x).shape
