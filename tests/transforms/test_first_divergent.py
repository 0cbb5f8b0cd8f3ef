"""verify names the unit at fault: one byte of one weight, or one scale, is changed in the artifact that the runtime reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from attrs import frozen
from torch import nn

import qfunc
from qfunc import targets
from qfunc.graph.sites import quantizer_nodes
from qfunc.lowering.artifact import Artifact
from qfunc.specs import Target, edit

FILES = {
    "onnxruntime": "model.onnx", "openvino": "model.onnx", "litert": "model.tflite", "litert_reference": "model.tflite",
    "litert_optimised": "model.tflite", "executorch_xnnpack": "model.pte", "ncnn": "model.ncnn.bin", "tosa": "model.tosa",
}  # fmt: skip
WITHOUT_SCALES = {"openvino", "tosa"}  # the ends of intervals, multipliers and shifts


@frozen
class Spoilt:
    """The target's own runner, of a file in which some bytes are others."""

    runner: Any
    file: str
    old: bytes
    new: bytes

    def _of(self, artifact: Artifact) -> Artifact:
        data = artifact.files[self.file]
        assert self.old in data
        return Artifact({**artifact.files, self.file: data.replace(self.old, self.new)})

    def run(self, artifact: Artifact, inputs: Any) -> Any:
        return self.runner.run(self._of(artifact), inputs)

    def inside(self, artifact: Artifact) -> Any:
        return self.runner.inside(self._of(artifact))


def _target(name: str) -> Target:
    return edit.weights(bits=6)(getattr(targets, name))  # of which every x86-64 computes the same sums


def _model(name: str) -> tuple[nn.Sequential, Any, list[torch.Tensor]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 12, 3), nn.ReLU(), nn.Conv2d(12, 12, 1), nn.ReLU(), nn.Conv2d(12, 5, 1), nn.ReLU()).eval()
    batches = [torch.randn(2, 3, 9, 11)]
    return net, qfunc.calibrate(batches, progress=False)(qfunc.quantize(_target(name))(net)), batches


def _first(name: str, done: Any, batches: Any, old: bytes, new: bytes) -> str:
    target = _target(name)
    report = qfunc.verify(target, Spoilt(target.runtime.runner, FILES[name], old, new))(done, batches)
    assert report.first is not None
    assert not report.agreement.startswith("bit-exact")
    return report.first.name


@pytest.mark.parametrize("name", FILES)
def test_a_byte_of_a_weight(name: str) -> None:
    """Of a 1x1 convolution, whose channels lie in one row in every layout."""
    net, done, batches = _model(name)
    (module,) = (s.module for s in quantizer_nodes(done) if s.module.site.name == "2.weight")
    weight = net[2].weight.detach()
    row: Any = module.export(weight)[0].to(torch.int8)[3].flatten().numpy()
    spoilt = row.copy()
    spoilt[5] = -spoilt[5]
    assert _first(name, done, batches, row.tobytes(), spoilt.tobytes()) in ("2", "3")


@pytest.mark.parametrize("name", sorted(FILES.keys() - WITHOUT_SCALES))
def test_a_scale(name: str) -> None:
    """Of what the second convolution makes; ncnn's file holds 1 / s, where codes are written and where they are read."""
    _, done, batches = _model(name)
    (scale,) = (s.module.scale.item() for s in quantizer_nodes(done) if s.module.site.name == "3")
    held = np.float32(1) / np.float32(scale) if name == "ncnn" else np.float32(scale)
    assert _first(name, done, batches, held.tobytes(), np.float32(held * 1.125).tobytes()) in ("2", "3")
