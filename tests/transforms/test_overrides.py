"""Overrides: later edits win; what calibration widens stays a scale that the hardware takes."""

import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.graph.network import seats
from qfunc.specs import edit


def formats(target):
    """Weight name -> bits on a net of two layers."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 1))
    sites = (s.module.site for s in seats(qfunc.quantize(target)(net)))
    return {s.name: s.scheme.format.bits for s in sites if s.slot == "weight"}


def test_a_later_override_of_bits_wins_though_it_is_wider():
    mine = edit.pipe(targets.tensorrt, edit.weights(bits=4), edit.override(edit.name("1"), weights={"bits": 8}))
    assert formats(mine) == {"0.weight": 4, "1.weight": 8}


def test_an_override_of_the_estimator_keeps_the_bits():
    ema = qfunc.estimators.Ema()
    mine = edit.pipe(targets.tensorrt, edit.weights(bits=4), edit.override(edit.name("1"), weights={"estimator": ema}))
    assert formats(mine) == {"0.weight": 4, "1.weight": 4}


def test_a_widened_scale_of_a_power_of_two_chip_is_a_power_of_two():
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight[0] = 1e-12
        layer.bias[0] = 0.7
    target = edit.pipe(targets.onnxruntime, edit.weights(power_of_two=True), edit.activations(power_of_two=True))
    calibrated = qfunc.calibrate([torch.randn(8, 3)])(qfunc.quantize(target)(layer))
    scale = next(s.module.scale for s in seats(calibrated) if s.module.site.slot == "weight").flatten()
    assert scale[0] > 1e-12
    assert torch.equal(torch.frexp(scale).mantissa, torch.full((2,), 0.5))
