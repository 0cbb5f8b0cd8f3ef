"""Weights that a module computes from its parameters: training moves the parameters, the chip gets one constant."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import recipes, targets
from qfunc.specs import edit
from qfunc.targets.onnxruntime.target import onnxruntime


def standardised(conv: Any) -> Tensor:
    w = conv.weight
    return (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)


def scaled(conv: Any) -> Tensor:
    """As timm's ScaledStdConv2d: a BatchNorm of the weight in training mode, times a gain that trains."""
    w = conv.weight.reshape(1, conv.out_channels, -1)
    gain = (conv.gain * 0.5).view(-1)
    return F.batch_norm(w, None, None, weight=gain, training=True, momentum=0.0, eps=1e-6).reshape_as(conv.weight)


def normalised(conv: Any) -> Tensor:
    return conv.gain * conv.weight / conv.weight.norm(2, (1, 2, 3), keepdim=True)


def squashed(conv: Any) -> Tensor:
    return torch.tanh(conv.weight) * conv.gain


def masked(conv: Any) -> Tensor:
    return conv.weight * conv.mask


def sliced(conv: Any) -> Tensor:
    return conv.weight.flip(1)[: conv.out_channels]


FORMULAS: tuple[Callable[[Any], Tensor], ...] = (standardised, scaled, normalised, squashed, masked, sliced)


class Conv(nn.Conv2d):
    """A convolution whose weight is a function of its parameters."""

    mask: Tensor

    def __init__(self, formula: Callable[[Any], Tensor], bias: bool = True) -> None:
        super().__init__(3, 4, 3, bias=bias)
        self.formula = formula
        self.gain = nn.Parameter(torch.rand(4, 1, 1, 1) + 0.5)
        self.register_buffer("mask", (torch.rand(4, 3, 3, 3) > 0.3).float())

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.formula(self), self.bias)


def network(formula: Callable[[Any], Tensor], norm: bool) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(Conv(formula, bias=not norm), nn.BatchNorm2d(4) if norm else nn.Identity(), nn.ReLU())
    if norm:
        nn.init.uniform_(net[1].weight, -2, 2)
        nn.init.uniform_(net[1].bias)
        net[1].running_var.uniform_(0.5, 2)
    return net.eval()


X = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(1))


def straight_through(weight: Tensor) -> Tensor:
    """Weights of 8 bits per channel; all lie in the range, so that the gradient passes everywhere."""
    scale = weight.detach().abs().amax((1, 2, 3), keepdim=True) / 127
    return weight + ((weight / scale).round() * scale - weight).detach()


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "folded norm"])
@pytest.mark.parametrize("road", [None, (X,)], ids=["fx", "export"])
@pytest.mark.parametrize("formula", FORMULAS, ids=lambda f: f.__name__)
def test_gradients_are_those_of_a_straight_through_quantizer_behind_the_formula(formula: Any, road: Any, norm: bool) -> None:
    net = network(formula, norm)
    quantized = qfunc.quantize(onnxruntime, road)(net)
    weights_only = qfunc.bypass(edit.op("conv"), roles=("activation",))(quantized).train()
    before = {name: p.detach().clone() for name, p in weights_only.named_parameters()}
    found = weights_only(X)
    found.square().mean().backward()

    conv, factor = net[0], torch.ones(4)
    bias = conv.bias
    if norm:
        factor = (net[1].weight / (net[1].running_var + net[1].eps).sqrt()).detach()
        bias = (net[1].bias - net[1].running_mean * factor).detach()
    wanted = F.conv2d(X, straight_through(formula(conv) * factor.reshape(-1, 1, 1, 1)), bias).relu()
    wanted.square().mean().backward()
    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)
    for name in ("weight", "gain"):
        mine, theirs = weights_only.get_parameter(f"0.{name}"), conv.get_parameter(name)
        assert torch.equal(mine, before[f"0.{name}"])
        assert (mine.grad is None) == (theirs.grad is None)
        assert theirs.grad is None or torch.allclose(mine.grad, theirs.grad, rtol=1e-3, atol=1e-6)
    assert not [name for name, _ in weights_only.named_parameters() if name.endswith("weight_of_conv2d")]


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("norms", [qfunc.FoldBatchNorm(), qfunc.TrainBatchNorm()], ids=repr)
@pytest.mark.parametrize("road", [None, (X,)], ids=["fx", "export"])
def test_a_step_moves_the_parameter_and_the_chip_gets_its_formula(road: Any, norms: Any, tmp_path: Path) -> None:
    target = recipes.lsq()(targets.onnxruntime)
    quantize = qfunc.quantize(target, road, batch_norm=norms)
    net = network(standardised, norm=True)
    student = qfunc.calibrate([X], progress=False)(quantize(net)).train()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
    student(X).square().mean().backward()
    optimizer.step()
    student.eval()
    assert not torch.equal(student.get_parameter("0.weight"), net[0].weight)
    assert qfunc.verify(target)(student, [X]).agreement.startswith("bit-exact: 0 of ")
    y = student(X)
    loaded = quantize(net).eval()
    loaded.load_state_dict(student.state_dict())
    qfunc.save(tmp_path)(student)
    same = (
        loaded,
        copy.deepcopy(student),
        pickle.loads(pickle.dumps(student)),
        qfunc.load(tmp_path)(net) if road is None else qfunc.load(tmp_path, road)(net),
        qfunc.fold_batch_norm()(student),
        qfunc.emulate(target)(student),
    )
    assert all(torch.equal(each(X), y) for each in same)


def test_the_later_transforms_take_the_constant() -> None:
    student = qfunc.calibrate([X], progress=False)(qfunc.quantize(targets.onnxruntime)(network(standardised, norm=False)))
    for changed in (qfunc.correct_bias([X])(student), qfunc.reconstruct(qfunc.adaround(iterations=2), [X])(student)):
        assert qfunc.verify(targets.onnxruntime)(changed, [X]).agreement.startswith("bit-exact: 0 of ")
    assert [site.tensor for site in qfunc.explain(student).sites if site.slot == "weight"] == ["0.weight_of_conv2d"]


def test_a_formula_of_frozen_parameters_is_one_constant() -> None:
    net = network(standardised, norm=False).requires_grad_(False)
    names = list(qfunc.quantize(targets.onnxruntime)(net).state_dict())
    assert "0.weight_of_conv2d" in names


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiled_step_has_the_gradients_of_an_eager_one() -> None:
    student = qfunc.calibrate([X], progress=False)(
        qfunc.quantize(targets.onnxruntime)(network(standardised, norm=False))
    ).train()
    other = copy.deepcopy(student)
    student(X).square().mean().backward()
    torch.compile(other, backend="aot_eager", fullgraph=True)(X).square().mean().backward()
    assert torch.allclose(student.get_parameter("0.weight").grad, other.get_parameter("0.weight").grad, rtol=1e-4, atol=1e-6)


class Readout(nn.Module):
    """A layer that is never called: a product reads its weight, transposed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.table = nn.Linear(4, 8), nn.Linear(8, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.first(x)) @ self.table.weight.T


def test_the_weight_of_a_layer_that_is_not_called_trains() -> None:
    net, x = Readout(), torch.randn(16, 4)
    quantized = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(net.eval()))
    assert "table.weight" in dict(quantized.named_parameters())
    quantized(x).square().sum().backward()
    assert quantized.get_parameter("table.weight").grad.abs().sum() > 0
    net.requires_grad_(False)  # no formula is needed, and no module without a use stays
    assert not [name for name, _ in qfunc.quantize(targets.onnxruntime)(net).named_parameters() if name.startswith("table")]
