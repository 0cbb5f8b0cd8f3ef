"""absorb_high_bias, correct_bias_analytic and smooth, each against its formula in plain float64."""

import copy
import math

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.corrections.expected_means import clipped_mean
from qfunc.errors import CalibrationError, SpecError
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import edit
from qfunc.testing.laws.corrections import worst_violation
from tests.corrections.channel_nets import rounding


def block(padding=0):
    """A BatchNorm whose values lie within beta +- 0.2, so that c = beta - 3 |gamma| is below them all where gamma >= 0.1."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3, padding=padding, bias=False)
    ).eval()
    net[0].weight.data.uniform_(-0.2, 0.2)
    net[0].bias.data.zero_()
    net[1].weight.data.copy_(torch.tensor([0.5, -0.3, 0.2, 1.0]))
    net[1].bias.data.copy_(torch.tensor([4.0, 2.0, 0.5, 1.0]))
    return net


def test_absorbed_where_all_values_are_above():
    net, x = block(), torch.rand(2, 3, 7, 6)
    absorbed = qfunc.corrections.absorb_high_bias()(net).eval()
    shift = torch.tensor([2.5, 1.1, 0.0, 0.0])  # max(0, beta - 3 |gamma|)
    assert torch.allclose(absorbed.get_parameter("1.bias"), net[1].bias - shift, rtol=0, atol=2**-22)
    wanted = (net[3].weight.double() * shift.double().reshape(-1, 1, 1)).sum((1, 2, 3))
    assert torch.allclose(absorbed.get_parameter("3.bias").double(), wanted, rtol=2**-22, atol=2**-22)
    # All values are above c, so the functions are one but for a rounding of beta' and one of b'.
    with torch.no_grad():
        found, wanted = copy.deepcopy(absorbed).double()(x.double()), copy.deepcopy(net).double()(x.double())
    net[1].bias.data.copy_(absorbed.get_parameter("1.bias").detach())
    net[3].bias = nn.Parameter(absorbed.get_parameter("3.bias").detach())
    assert bool(((found - wanted).abs() <= rounding(net, x, 1)).all())


def test_nothing_is_absorbed_beside_padding():
    with pytest.raises(SpecError) as e:
        qfunc.corrections.absorb_high_bias()(block(padding=1))
    assert str(e.value) == (
        "absorb_high_bias: found no such pair ('1', at 'its readers': its reader also reads padding, which a bias does not "
        "shift; '3', at 'output': it is an output of the model), wanted an op with a BatchNorm and a ReLU, read only by ops "
        "with weights and without padding. Remove qfunc.absorb_high_bias."
    )


def by_sum(function, mean, deviation):
    """The mean of function(y) for normal y, as a sum over a fine grid within ten deviations."""
    y = torch.linspace(mean - 10 * deviation, mean + 10 * deviation, 200_001, dtype=torch.float64)
    weight = torch.exp(-(((y - mean) / deviation) ** 2) / 2)
    return float((function(y) * weight).sum() / weight.sum())


@pytest.mark.parametrize(("low", "high"), [(0.0, math.inf), (0.0, 6.0), (-1.0, 2.0), (-math.inf, 0.5)])
def test_the_mean_behind_a_clip(low, high):
    for mean, deviation in ((0.0, 1.0), (-3.0, 0.7), (5.5, 2.0), (0.4, 0.01)):
        found = clipped_mean(*(torch.tensor([v], dtype=torch.float64) for v in (mean, deviation)), low, high)
        # the grid's own error: 1e-4 deviations a step, of a function with kinks
        assert float(found) == pytest.approx(by_sum(lambda y: y.clamp(low, high), mean, deviation), abs=1e-7 * (1 + abs(mean)))
    still = clipped_mean(torch.tensor([3.0]).double(), torch.tensor([0.0]).double(), low, high)
    assert float(still) == min(max(3.0, low), high)


@pytest.mark.parametrize("act", [nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.2), nn.Identity()])
def test_biases_take_back_what_norms_expect(act):
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), act, nn.AvgPool2d(2), nn.Conv2d(4, 5, 2)).eval()
    net[1].weight.data.copy_(torch.tensor([0.5, -0.3, 2.0, 4.0]))
    net[1].bias.data.copy_(torch.tensor([1.0, -2.0, 0.5, 5.0]))
    quantized = qfunc.quantize(edit.weights(bits=3)(targets.onnxruntime))(net)
    corrected = qfunc.correct_bias_analytic(net)(quantized)
    means = [by_sum(act, float(b), abs(float(g))) for g, b in zip(net[1].weight.detach(), net[1].bias.detach(), strict=True)]
    weight = next(s.module for s in quantizer_nodes(quantized) if s.module.site.name == "4.weight")(net[4].weight).detach()
    for o in range(5):
        shift = sum(float((weight[o, i] - net[4].weight[o, i].detach()).double().sum()) * means[i] for i in range(4))
        # the grid's error and a rounding of the bias to float32
        assert float(corrected.get_parameter("4.bias")[o].detach()) == pytest.approx(
            float(net[4].bias[o].detach()) - shift, abs=1e-6
        )
    assert torch.equal(corrected.get_parameter("0.bias"), quantized.get_parameter("0.bias"))


def test_biases_of_another_float_model():
    net = block()
    quantized = qfunc.quantize(targets.onnxruntime)(qfunc.equalize()(net))
    with pytest.raises(CalibrationError) as e:
        qfunc.correct_bias_analytic(net)(quantized)
    assert str(e.value) == (
        "correct_bias_analytic: found op '_0', whose weight differs from the given float model's, wanted the float model "
        "that was quantized. Pass the model that qfunc.quantize was given; after training use "
        "qfunc.correct_bias."
    )


class Attention(nn.Module):
    """A LayerNorm that three linear layers read, and a layer behind a ReLU."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(6), nn.Dropout()
        self.q, self.k, self.fc = nn.Linear(6, 5, bias=False), nn.Linear(6, 5), nn.Linear(6, 7)
        self.out = nn.Linear(7, 5)

    def forward(self, x):
        """Scores."""
        x = self.drop(self.norm(x))
        return self.q(x) * self.k(x).sigmoid() + self.out(torch.relu(self.fc(x)))


@pytest.mark.parametrize("alpha", [0.5, 0.8])
def test_smoothed(alpha):
    torch.manual_seed(0)
    net = Attention().eval()
    net.norm.weight.data.copy_(10 ** torch.empty(6).uniform_(-1, 2))
    batches = [torch.randn(2, 3, 6), torch.randn(5, 6)]
    smooth = qfunc.smooth_quant(iter(batches), alpha=alpha, progress=False)(net).eval()
    with torch.no_grad():
        seen = torch.cat([net.norm(x).reshape(-1, 6) for x in batches]).double()
        for j in range(6):
            largest = max(float(layer.weight[:, j].abs().max()) for layer in (net.q, net.k, net.fc))
            s = float(seen[:, j].abs().max()) ** alpha / largest ** (1 - alpha)
            # one rounding to float32 here, and those of the LayerNorm there
            assert float(smooth.norm.weight[j]) == pytest.approx(float(net.norm.weight[j]) / s, rel=1e-6)
            assert torch.allclose(smooth.get_parameter("q.weight")[:, j], net.q.weight[:, j] * s, rtol=1e-6)
    assert worst_violation(qfunc.capture()(net), smooth, (batches[0],))[0] <= 1


@pytest.mark.parametrize("alpha", [-0.1, 1.5, True, "0.5", math.nan])
def test_alpha(alpha):
    with pytest.raises(SpecError) as e:
        qfunc.smooth_quant([torch.rand(1, 6)], alpha=alpha)
    assert str(e.value) == (
        f"smooth_quant, alpha: found {alpha!r}, wanted a number from 0 to 1. Write qfunc.smooth_quant(batches, alpha=0.5)."
    )


def test_nothing_to_smooth():
    with pytest.raises(SpecError, match="smooth_quant: found no such pair"):
        qfunc.smooth_quant([torch.rand(1, 3)])(nn.Sequential(nn.Linear(3, 2), nn.GELU()))
    with pytest.raises(CalibrationError, match="smooth_quant: found no batches"):
        qfunc.smooth_quant([], progress=False)(Attention())
    with pytest.raises(CalibrationError, match="NaN or infinite values in its input"):
        qfunc.smooth_quant([torch.full((1, 6), math.nan)], progress=False)(Attention())
