"""Unsigned codes without a zero point: refused for weights with negative values, one warning for activations."""

import re
import warnings

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from qfunc.specs import edit


def network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).eval().requires_grad_(False)
    net[0].weight[0, 0] = -0.75
    net[2].weight.abs_()
    return net, torch.randn(32, 4)


BASES = {"onnxruntime": targets.onnxruntime, "academic": targets.academic(4, 8)}


@pytest.mark.parametrize("base", BASES)
def test_a_weight_with_negative_values_is_refused_and_the_cures_work(base):
    net, x = network()
    unsigned = edit.weights(signed=False)(BASES[base])
    with pytest.raises(SpecError) as caught:
        qfunc.quantize(unsigned)(net)
    count, form = int((net[0].weight < 0).sum()), re.search(r"Int\(\d+, signed=False\)", str(caught.value)).group()
    assert str(caught.value) == (
        f"weight '0.weight' of op '0': found {count} of 24 values below 0, down to -0.75, for which {form} without a zero "
        "point has no codes, wanted signed codes or a zero point. Use edit.weights(signed=True), or symmetric=False for a "
        "zero point."
    )
    for cure in (edit.weights(signed=True), edit.weights(symmetric=False)):
        cured = qfunc.calibrate([x], progress=False)(qfunc.quantize(cure(unsigned))(net))
        assert float((cured(x) - net(x)).norm() / net(x).norm()) < 0.2
    net[0].weight.abs_()
    qfunc.quantize(unsigned)(net)  # without negative values nothing is lost


def calibration(target):
    net, x = network()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        qfunc.calibrate([x[:10], x[10:]], progress=False)(qfunc.quantize(target)(net))
    return x, [str(w.message) for w in caught if "below 0" in str(w.message)]


def test_an_activation_with_negative_values_is_one_warning():
    """The input is negative in half of its values; the ReLU's output never is, and the last output may be."""
    target = edit.activations(signed=False, symmetric=True)(targets.academic(4, 8))
    x, texts = calibration(target)
    assert len(texts) == 1
    share = 100 * float((x < 0).float().mean())
    assert texts[0].startswith(
        f"calibrate, site 'input': found {share:.3g} % of its values below 0, down to {float(x.min()):.4g}"
    )
    assert texts[0].endswith(
        "wanted none, because Int(8, signed=False) without a zero point maps them to 0. Use edit.activations(signed=True), or "
        "symmetric=False for a zero point."
    )
    for cure in (edit.activations(signed=True), edit.activations(symmetric=False)):
        assert calibration(cure(target))[1] == []
    assert calibration(targets.academic(4, 8))[1] == []
