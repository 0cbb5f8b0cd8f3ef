"""Transposed convolutions in ncnn: layers in float32 between those on codes, against PyTorch's."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from tests.lowering.drawn_law import _calibrated
from tests.lowering.ncnn_files.test_ncnn import Read

needs_ncnn = pytest.mark.skipif(importlib.util.find_spec("ncnn") is None, reason="ncnn is not installed")
TARGET = targets.ncnn
LAYERS = {
    "plain": nn.ConvTranspose2d(6, 5, 3),
    "every side": nn.ConvTranspose2d(6, 5, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(1, 2)),
    "groups": nn.ConvTranspose2d(6, 9, (2, 3), stride=2, groups=3, bias=False),
    "depthwise": nn.ConvTranspose2d(6, 6, 3, stride=2, padding=1, output_padding=1, groups=6),
    "dilated": nn.ConvTranspose2d(6, 4, (2, 3), dilation=(2, 1), padding=(1, 1)),
    "signal": nn.ConvTranspose1d(6, 5, 4, stride=2, padding=1, output_padding=1),
}


def net(name: str, *behind: nn.Module) -> tuple[nn.Module, tuple[int, ...]]:
    """A convolution and the layer, and the shape of its input."""
    layer = LAYERS[name]
    signal = isinstance(layer, nn.ConvTranspose1d)
    first = nn.Conv1d(3, 6, 1) if signal else nn.Conv2d(3, 6, 1)
    return nn.Sequential(first, layer, *behind).eval(), (2, 3, 9) if signal else (2, 3, 9, 7)


@needs_ncnn
@pytest.mark.parametrize("name", LAYERS)
def test_the_runtime_computes_what_torch_does(name):
    for behind in ((), (nn.ReLU6(),)):
        model, shape = net(name, *behind)
        done, x = _calibrated(model, TARGET, shape), torch.randn(shape)
        found, wanted = TARGET.runtime.runner.run(qfunc.deploy(TARGET)(done), [x])[0], done(x).detach().numpy()
        # Of a few dozen float32 products the order of the sum is ncnn's own.
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * abs(wanted).max())


@pytest.mark.parametrize("name", LAYERS)
def test_the_file_holds_each_output_s_weights(name):
    model, shape = net(name)
    layer = LAYERS[name]
    read = Read(qfunc.deploy(TARGET)(_calibrated(model, TARGET, shape)).files)
    (written,) = (each for each in read.layers if each["kind"].startswith("Deconvolution"))
    groups, outputs = layer.groups, layer.out_channels // layer.groups
    wanted = [
        layer.weight[g * (6 // groups) : (g + 1) * (6 // groups), o].detach().numpy().ravel()
        for g in range(groups)
        for o in range(outputs)
    ]
    assert np.array_equal(written["weight"], np.concatenate(wanted))
    assert np.array_equal(written["bias"], [] if layer.bias is None else layer.bias.detach().numpy())
    assert int(written.get(7, 1)) == groups
    assert int(written[18]) == layer.output_padding[-1]
