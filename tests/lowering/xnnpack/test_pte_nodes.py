"""The nodes in a .pte say what the model's layers say, read by the numbers of the fields in ExecuTorch's schema."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError
from qfunc.graph.sites import quantizer_nodes
from tests.lowering.tflite.test_litert import _calibrated
from tests.lowering.xnnpack.test_executorch import INSTALLED, Reader

TARGET = targets.executorch_xnnpack
# backends/xnnpack/serialization/schema.fbs: the place of a node among the union's, those of its fields in their order.
CONV, POOL, DEEP, DECONV, PAD, LEAKY = 7, 14, 13, 39, 10, 25


class Layers(nn.Module):
    """Layers whose sizes differ along each axis."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped = nn.Conv2d(6, 4, (3, 2), (2, 1), (1, 2), (1, 3), groups=2)
        self.deep = nn.Conv2d(6, 12, (2, 3), (1, 2), (2, 0), groups=6)
        self.back = nn.ConvTranspose2d(6, 5, (4, 3), (3, 2), (2, 1), (2, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """[N, 6, 11, 13] -> one tensor a layer."""
        pooled = F.max_pool2d(self.deep(x), (3, 4), (2, 1), (1, 2), (2, 3))
        return self.grouped(x), pooled, self.back(x), self.deep(F.pad(F.leaky_relu(x, 0.25), (1, 2, 3, 4)))


def nodes(file: bytes) -> dict[int, Reader]:
    """The last node of each kind."""
    held = Reader(file).tables(3)[0].vector(0, "u1").tobytes()
    _, _, start, length, _, _ = struct.unpack("<4x4sHIIIQ", held[:30])
    return {n.value(0, "<B"): n.table(1) for n in Reader(held[start : start + length]).tables(1)}


def test_windows_strides_and_groups_are_those_of_the_layers():
    model, _ = _calibrated(Layers(), TARGET, 1, 6, 11, 13)
    found = nodes(qfunc.deploy(TARGET)(model).files["model.pte"])
    # Padding above, right, below, left; kernel; stride; dilation; a group's inputs and outputs; groups; adjustment.
    window = {kind: [found[kind].value(i) for i in range(15)] for kind in (CONV, DEEP, DECONV)}
    assert window[CONV] == [1, 2, 1, 2, 3, 2, 2, 1, 1, 3, 3, 2, 2, 0, 0]
    assert window[DEEP] == [2, 0, 2, 0, 2, 3, 1, 2, 1, 1, 1, 2, 6, 0, 0]
    assert window[DECONV] == [2, 1, 2, 1, 4, 3, 3, 2, 1, 1, 6, 5, 1, 2, 1]
    assert [found[POOL].value(i) for i in range(10)] == [1, 2, 1, 2, 3, 4, 2, 1, 2, 3]
    assert [found[PAD].vector(i, "<u4").tolist() for i in (0, 1)] == [[0, 0, 3, 1], [0, 0, 4, 2]]
    assert found[PAD].value(2, "<f") == 0.0
    assert found[LEAKY].value(0, "<f") == 0.25


@pytest.mark.parametrize("make", [lambda: nn.Conv2d(3, 4, 2), lambda: nn.ConvTranspose2d(3, 4, 2)])
def test_products_that_xnnpack_does_not_scale_are_refused(make):
    model, _ = _calibrated(make(), TARGET, 1, 3, 5, 4)
    *inputs, output = (s.module for s in quantizer_nodes(model) if not s.module.site.constant)
    weight = next(s.module for s in quantizer_nodes(model) if s.module.site.slot == "weight")
    limit = float(inputs[0].scale * weight.scale.max()) / 2.0**8
    output.scale.fill_(np.nextafter(np.float32(limit), np.float32(1)))
    qfunc.deploy(TARGET)(model)
    output.scale.fill_(limit)
    with pytest.raises(DeployError, match=r"found s_x \* s_w / s_y = 256, wanted a ratio below 2\^8\. Calibrate"):
        qfunc.deploy(TARGET)(model)


@pytest.mark.parametrize(("alpha", "within", "beyond"), [
    (2.0, 64, 64.001), (-2.0, 63.998, 63.999), (0.25, 128, 128.001), (-0.25, 128, 128.001),
])  # fmt: skip
def test_slopes_of_more_than_sixteen_bits_are_refused(alpha, within, beyond):
    model, _ = _calibrated(nn.LeakyReLU(alpha), TARGET, 1, 3, 5, 4)
    given, output = (s.module for s in quantizer_nodes(model))
    given.scale.fill_(0.5)
    output.scale.fill_(0.5 / within)
    x = 0.5 * (torch.arange(60.0).reshape(1, 3, 5, 4) - 30)
    if INSTALLED:
        assert qfunc.verify(TARGET)(model, [x]).verdict.startswith("bit-exact: 0 of")
    output.scale.fill_(0.5 / beyond)
    with pytest.raises(DeployError) as caught:
        qfunc.deploy(TARGET)(model)
    found = f"found an input scale of 0.5 and an output scale of {0.5 / beyond:g}"
    wanted = "wanted s_x / s_y and alpha * s_x / s_y in [2^-8 - 2^7, 2^7]"
    assert str(caught.value).endswith(f": {found}, {wanted}. Calibrate on inputs of the deployed range.")
