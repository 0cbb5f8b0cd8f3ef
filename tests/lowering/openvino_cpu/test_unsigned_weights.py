"""Weights whose codes are unsigned or have a zero point load and compute what the simulation does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.specs import edit
from qfunc.targets.runtimes import OpenVinoRunner

EDITS = {
    "unsigned": (edit.weights(signed=False),),
    "zero point": (edit.weights(symmetric=False),),
    "unsigned, zero point": (edit.weights(symmetric=False, signed=False),),
    "unsigned, 4 bits": (edit.weights(bits=4, signed=False),),
}
LAYERS = {
    "norm, convolution": lambda: (nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular", bias=False)),
    "two convolutions": lambda: (nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)),
    "depthwise, linear": lambda: (nn.Conv2d(4, 4, 3, groups=4), nn.Linear(6, 4)),
    "transposed, convolution": lambda: (nn.ConvTranspose2d(4, 4, 3), nn.Conv2d(4, 4, 3)),
    "depthwise, transposed": lambda: (nn.Conv2d(4, 8, 3, groups=4), nn.ConvTranspose2d(8, 4, 3, groups=2)),
}


@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_the_file_runs_and_computes_what_is_predicted(edits, layers):
    if missing := OpenVinoRunner().missing():
        pytest.skip(missing)
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.SiLU(), *layers(), nn.Sigmoid()).eval(), torch.randn(2, 4, 8, 8)
    if edits in (EDITS["unsigned"], EDITS["unsigned, 4 bits"]):  # without a zero point there are no codes of negative weights
        for layer in model[1:-1]:
            layer.weight.data.abs_()
    target = edit.pipe(targets.openvino, *edits)
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model))
    assert qfunc.verify(target)(calibrated, [x]).agreement.startswith(("bit-exact", "within 1 LSB or their bounds: "))
