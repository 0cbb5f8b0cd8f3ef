"""Weights and biases with several readers: OpenVINO neither merges the products nor fuses an addition into another one."""

from __future__ import annotations

import importlib.util
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.specs import edit
from qfunc.targets.runtimes import OpenVinoRunner

needs_openvino = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="openvino is not installed")
NARROW = edit.weights(bits=7)(targets.openvino)  # exact on CPUs without VNNI too
CHANNELS = 4
LAYERS = {
    "pointwise": lambda: nn.Conv2d(CHANNELS, CHANNELS, 1),
    "depthwise": lambda: nn.Conv2d(CHANNELS, CHANNELS, 1, groups=CHANNELS),
    "window": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
    "linear": lambda: nn.Linear(CHANNELS, CHANNELS),
    "rows": lambda: nn.Linear(CHANNELS, CHANNELS),
}
SHAPES = {"linear": (3, CHANNELS), "rows": (3, 5, CHANNELS)}


class Shared(nn.Module):
    """Two layers with one weight and two biases, each called several times, with sums between the calls."""

    def __init__(self, kind: str, draw: random.Random) -> None:
        super().__init__()
        self.a, self.b = LAYERS[kind](), LAYERS[kind]()
        self.b.weight = self.a.weight
        self.steps = [(draw.random() < 0.5, draw.randrange(3)) for _ in range(4)]

    def forward(self, x: Tensor) -> Tensor:
        values = [x, self.a(x), self.b(x)]
        for first, back in self.steps:
            values.append((self.a if first else self.b)(values[-1 - back]) + values[-1])
        return torch.cat(values[1:])


@needs_openvino
@pytest.mark.parametrize("kind", LAYERS)
def test_shared_layers_compute_the_emulation(kind: str) -> None:
    torch.manual_seed(0)
    model, x = Shared(kind, random.Random(kind)).eval(), torch.randn(SHAPES.get(kind, (2, CHANNELS, 5, 5)))
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(NARROW)(model))
    (found,) = OpenVinoRunner().run(qfunc.deploy(NARROW)(calibrated), [x.numpy()])
    expected = qfunc.emulate(NARROW)(calibrated)(x).detach().numpy()
    # Six sums round to codes of 1/127 of their range or less, and a code next to a tie may be one off in some of them. A merged
    # product is off by the difference of its biases: 0.16 of the largest value, in the rows.
    assert np.abs(found - expected).max() <= 0.02 * np.abs(expected).max()
